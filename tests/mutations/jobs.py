"""Faults of the server of jobs and of rewards by address: a check that is left out, a lock that is not handed on."""

from tests.mutations import Mutation

ACCESS, ASKED, HAS, READ, RUNS = (
    f"server/jobs/test_{name}.py" for name in ("access", "specification", "store", "reading", "queue")
)

MUTATIONS = [
    *(
        Mutation("rewards/remote.py", old, new, "rewards/test_remote.py")
        for old, new in [
            ("if self.public and (private", "if False and (private"),
            ("not is_public(address)]", "is_public(address)]"),
            ("return found.is_global and not found.is_multicast", "return found.is_global"),
            ("return is_public(str(inner))", "return True"),
            ("found.ipv4_mapped or found.sixtofour", "found.ipv4_mapped"),
            ("if inner is None and any(found in network for network in _EMBEDDED):", "if False:"),
            ("create_connection((addresses[0][1], port)", "create_connection((host, port)"),
            ("server_hostname=host", "server_hostname=addresses[0][1]"),
            ("if answer.status != 200:", "if answer.status >= 400:"),
            ("if size > most:", "if False:"),
            ("in_time(TIMEOUT_S, self._post, body, most)", "self._post(body, most)"),
            ("if len(values) != count:", "if False:"),
            ("type(one) not in (int, float)", "not isinstance(one, int | float)"),
            ("2 ** (attempt - 1)", "attempt"),
            ('if answer.headers.get("Content-Encoding", "identity") != "identity":', "if False:"),
            ("bounds = (-math.inf, math.inf)", "bounds = (0.0, 1.0)"),
            ("if answer.status in TRANSIENT:", "if False:"),
        ]
    ),
    Mutation("server/keys.py", "secrets.compare_digest(kept, digest)", "kept == digest", ACCESS),
    Mutation("server/guard.py", "if owner is None:", "if False:", ACCESS),
    Mutation("server/guard.py", "self._read < DROPPED_BYTES", "True", ACCESS),
    *(
        Mutation(f"server/{file}", old, new, ACCESS)
        for file, old, new in [
            ("jobs/routes.py", "redirect_slashes=False", "redirect_slashes=True"),
            ("answers.py", "hosts=hosts,", "hosts=None,"),
        ]
    ),
    *(
        Mutation("server/jobs/store.py", old, new, f"{ACCESS} {HAS}")
        for old, new in [
            ("if job is None or job.owner != owner:", "if job is None:"),
            ("[job for job in self.all() if job.owner == owner]", "self.all()"),
            ("new.mkdir(mode=0o700)", "new.mkdir()"),
            ("exist_ok=True, mode=0o700)", "exist_ok=True)"),
            ("if used >= self._limits.bytes_per_key:", "if False:"),
            (">= self._limits.queued_per_key", "> self._limits.queued_per_key"),
            ("if len(jobs) >= self._limits.kept_per_key:", "if False:"),
            ("if self._jobs[job.id].state in OPEN:", "if False:"),
            (
                "        finally:\n            shutil.rmtree(new, ignore_errors=True)\n",
                "        finally:\n            pass\n",
            ),
            ("if path.name.startswith((_NEW, _OLD)):", "if False:"),
        ]
    ),
    *(
        Mutation("server/jobs/options.py", old, new, ASKED)
        for old, new in [
            ("if not _KNOB.fullmatch(name):", "if not _KNOB.match(name):"),
            ("if not _KNOB.fullmatch(value):", "if not _KNOB.match(value):"),
            ("_WORDS.fullmatch(text)", "_WORDS.match(text)"),
            (" or _CONTROL.search(text)", ""),
            ("type(value) is not int", "not isinstance(value, int)"),
            ("is not int or not least <= value <= most", "is not int or not least <= value"),
            ("is not int or not least <= value <= most", "is not int or not value <= most"),
            ("type(value) is not int", "type(value) not in (int, float)"),
            ("len(text) > TEXT_LETTERS or ", ""),
            ("value not in words", "False"),
        ]
    ),
    *(
        Mutation("server/jobs/bodies.py", old, new, ASKED)
        for old, new in [
            ('extra="forbid"', 'extra="ignore"'),
            ('pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"', 'pattern=r"^[A-Za-z_]"'),
            (", strict=True", ""),
        ]
    ),
    *(
        Mutation("server/jobs/specification.py", old, new, f"{ASKED} {HAS}")
        for old, new in [
            (" if _NAME.fullmatch(path.name))", ")"),
            (" or name not in known:", ":"),
            ("if owner not in offered.trusted:", "if False:"),
            ("else PUBLIC + reward.url", "else reward.url"),
            ('urlsplit(reward.url).scheme != "https"', "False"),
            ("check_address(reward.url)", "pass"),
            ("for reward in rewards) > 1:", "for reward in rewards) > 2:"),
            (" if name not in NO_ENVIRONMENT]", "]"),
            ("elif asked.rewards:", "elif False:"),
            ("    check_options(asked.command, asked.options)\n", ""),
            ("    check_knobs(asked.knobs)\n", ""),
        ]
    ),
    *(
        Mutation("server/jobs/reading.py", old, new, f"{READ} {HAS}")
        for old, new in [
            ("os.O_RDONLY | os.O_NOFOLLOW | kind", "os.O_RDONLY | kind"),
            ("if not stat.S_ISREG(os.fstat(at).st_mode):", "if False:"),
            ("kind = os.O_NONBLOCK if", "kind = 0 if"),
            ("return clean(raw.decode(errors=", "return (raw.decode(errors="),
            ("entry.is_file(follow_symlinks=False)", "entry.is_file()"),
            ("if path.is_symlink() or not path.is_dir():", "if not path.is_dir():"),
            ("if entry.name.endswith(EXPORTED) and not", "if not"),
            ('and not entry.name.startswith("."))', ")"),
            ("yield bytes(-found.st_size % tarfile.BLOCKSIZE)", "yield b''"),
            ("raw = raw[: len(raw) - _torn(raw)]", "raw = raw[:]"),
            ('if not line.endswith(b"\\n") or len(rows)', "if len(rows)"),
            ("\\u2028-\\u202e", ""),
        ]
    ),
    Mutation("server/jobs/reading.py", "return clean(found[-1])[:1000]", "return found[-1][:1000]", RUNS),
    *(
        Mutation("server/jobs/routes.py", old, new, f"{READ} {HAS}")
        for old, new in [
            ('if request.headers.get("content-encoding", "identity") != "identity":', "if False:"),
            ('media_type="text/plain"', 'media_type="text/html"'),
            ('"X-Next-Offset": str(after), **NO_SNIFFING', '"X-Next-Offset": str(after)'),
            ("headers=NO_SNIFFING)", "headers={})"),
            (
                'if job.state in OPEN:\n        raise HTTPException(409, f"job {job.id} has not ended")',
                "if False:\n        pass",
            ),
            ("if job.number < number]", "if job.number <= number]"),
        ]
    ),
    *(
        Mutation("server/jobs/queue.py", old, new, RUNS)
        for old, new in [
            ("return active, last_start", "return 0, last_start"),
            ("return active, last_start.get(job.owner, 0.0), job", "return active, 0.0, job"),
            ("return active, last_start.get(job.owner, 0.0), job.number", "return active, 0.0, -job.number"),
            ("if job.attempts < MOST_ATTEMPTS:", "if True:"),
            ("(running := self.running()) < self.at_once", "(running := self.running()) <= self.at_once"),
            ("            self._last_start[job.owner] = time.time()\n", ""),
            ("elif found == GONE and", "elif found != ORPHANED and"),
            ("            self.store.take_back(job)\n", ""),
            ("self._later[job.id] = time.time() + PAUSE_SECONDS", "self._later[job.id] = 0.0"),
            ("if time.time() - first < GIVE_UP_SECONDS:", "if True:"),
            ("            self.processes.cancel(self.store.folder(job))\n", ""),
        ]
    ),
    *(
        Mutation("server/jobs/processes.py", old, new, RUNS)
        for old, new in [
            ("if None in locks:", "if False:"),
            ("pass_fds=[lock for lock in locks if lock is not None]", "pass_fds=[locks[0]]"),
            ("pass_fds=[lock for lock in locks if lock is not None]", "pass_fds=[locks[1]]"),
            ("start_new_session=True", "start_new_session=False"),
            ("for name in (*PASSED, *COMPUTE) if name in os.environ", "for name in os.environ"),
            (" and _is_in(group, folder):", ":"),
            ("filter(None, kept", "filter(lambda part: True, kept"),
            ("map(os.path.abspath, paths)", "paths"),
            ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        ]
    ),
    *(
        Mutation("server/jobs/supervisor.py", old, new, RUNS)
        for old, new in [
            ("pass_fds=[lock]", "pass_fds=[]"),
            (", process_group=0", ""),
            ("_kill(child.pid)  # workers", "pass  # workers"),
            ("kill_at = now + grace", "kill_at = now + 600"),
            ('exists():\n        return {"code": STOPPED, "why": CANCELLED}', "is_dir():\n        pass"),
            ("now - began > seconds", "False"),
            ("> most else", "> 10**12 else"),
            ("most = log.tell() + LOG_LIMIT", "most = LOG_LIMIT"),
            ('if _checkpoints(folder):\n        words = plan["resumed"]', 'if True:\n        words = plan["resumed"]'),
            ("text = text.replace(path, name)", "pass"),
            ("if cancels and (folder / CANCEL).exists():", "if False:"),
        ]
    ),
]
