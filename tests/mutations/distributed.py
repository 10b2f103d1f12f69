"""Faults of the processes of a cluster: a loss that is not seen, a process that goes on, a log that is lost."""

from tests.mutations import Mutation

CLUSTER, GROUP = "distributed/test_cluster.py", "distributed/test_learner_group.py"
ROUTING, RECIPES = "distributed/test_routing.py", "distributed/test_recipes.py"
SHARDING, SCORERS = "distributed/test_sharding.py", "distributed/test_scorers.py"
FUNCTIONS = "distributed/test_reward_functions.py"
TIMED_OUT = "what_has_timed_out_is_kept_in_the_run_and_known_to_all_processes"
SAY = "say_what_they_say_in_one_process"
ORDERED = "scores_are_those_of_one_process_in_order"
STARTING = "a_process_that_is_lost_while_it_starts_is_an_attempt_like_others"
NOBODY = "calls_at_the_same_time_go_to_processes_that_nobody_uses"
SAME = "where_nothing_else_is_scored_shares_go_to_the_same_processes"

MUTATIONS = [
    *(
        Mutation(file, old, new, "distributed/test_passing_on.py")
        for file, old, new in [
            ("distributed/samplers.py", "answers |= self._answers(again", "self._answers(again"),
            ("distributed/samplers.py", "if answer.error else answer.value", "if True else answer.value"),
            (
                "distributed/samplers.py",
                "answers[place.number].error, ChannelError)",
                "answers[place.number].error, Lost)",
            ),
            ("distributed/samplers.py", "min(PATIENCE, max(2 * ALIVE_S, self.timeout_s / 4))", "PATIENCE"),
            ("distributed/sampler.py", "        self._arriving = None\n        with", "        with"),
            ("distributed/sampler.py", "weights, loaded)", "weights)"),
        ]
    ),
    *(
        Mutation("distributed/connection.py", old, new, CLUSTER)
        for old, new in [
            ('if address not in ("", known):', "if False:"),
            ('if address not in ("", known):', "if address != known:"),
            ('"RAY_worker_niceness", "0"', '"RAY_worker_niceness", "15"'),
            ("== address:\n                    return name", "!= address:\n                    return name"),
            ("        _reach(address)\n", ""),
            ("    except OSError as error:  # nobody", "    except ConnectionError as error:  # nobody"),
            ('os.environ.get("RAY_ADDRESS") or ', ""),
        ]
    ),
    *(
        Mutation("distributed/cluster.py", old, new, CLUSTER)
        for old, new in [
            ("except ray.exceptions.RayError as error:", "except ray.exceptions.RayActorError as error:"),
            ("except ray.exceptions.RayTaskError:", "except ray.exceptions.ActorDiedError:"),
            ("first_line(error)", "str(error)"),
            ("ray.cloudpickle.loads(ray.cloudpickle.dumps(error))", "ray.cloudpickle.dumps(error)"),
            ("            told.add_note(note)\n", "            pass\n"),
            ('min(1.0, ray.cluster_resources().get("GPU", 0.0))', 'ray.cluster_resources().get("GPU", 0.0)'),
            ("if self.gpus is None else self.gpus", "if not self.gpus else self.gpus"),
            ('"GPU": found, ', ""),
            ("math.ceil(self.memory_gb * 1e9)", "math.ceil(self.memory_gb * 2**30)"),
            ('for name, amount in asked.items() if amount or name == "CPU"', "for name, amount in asked.items()"),
            ('{} if bundle.get("GPU") else {"CUDA_VISIBLE_DEVICES": ""}', "{}"),
            ("if started == _started(pid):", "if pid:"),
            ("os.kill(pid, signal.SIGKILL)", "os.kill(pid, signal.SIGTERM)"),
            ("if not self._group.wait(PLACED_S):", "if False:"),
            ("error.add_note(traceback.format_exc())", "pass"),
            ('open(file, "ab") as log', 'open(file, "wb") as log'),
            ("if first else ()", "if False else ()"),
            ('if not line.startswith(b":")', "if line"),
            ("            os.chdir(folder)\n", "            pass\n"),
            ("with contextlib.suppress(OSError):\n            os.chdir", "if True:\n            os.chdir"),
            ("if self._logs is not None:", "if False:"),
            ("handles, self._handles = self._handles, []  # at", "handles = self._handles  # at"),
            ("        if not self._handles:\n            raise", "        if False:\n            raise"),
            ("if not file.parent.is_dir():", "if file.parent.is_dir():"),
            ('"" if self._logs is None else', '"" if True else'),
        ]
    ),
    *(
        Mutation("distributed/scorers.py", old, new, f"{SCORERS}::test_{test}")
        for old, new, test in [
            (
                "except Lost as lost:",
                "except Exception as lost:",
                "what_a_model_refuses_is_raised_as_it_is",
            ),
            (
                "self._models.rewards[model](conversations), time",
                "self._models.rewards[0](conversations), time",
                ORDERED,
            ),
            (
                "self._models.chats[model]\n",
                "self._models.chats[0]\n",
                "completions_are_those_of_one_process_in_order",
            ),
            (
                "        self._tokens += tokens",
                "        self._tokens = tokens",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            (
                "len(done) < self._left and time.monotonic() < until",
                "len(done) < self._left",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            (
                "time.monotonic() < until",
                "not done",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            (
                "        self._left -= len(done)\n",
                "",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            (
                "        self.end()\n        policy",
                "        policy",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            (
                '            self.actors.call(place, "end")\n',
                "            pass\n",
                "a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer",
            ),
            (
                "                done |= found.done\n",
                "                done = found.done\n",
                "a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer",
            ),
            (
                'self._ledger.note("scoring", [place], found.seconds)',
                "pass",
                "a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer",
            ),
            (
                "                told(found.tokens)\n",
                "                pass\n",
                "a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer",
            ),
            (
                "        told(0)  # who",
                "        # who",
                "a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer",
            ),
            (
                "            refuse_unanswerable(number, request, policy.model.context, policy.model.name)\n",
                "            pass\n",
                "a_process_says_after_each_slice_of_time_what_is_done",
            ),
            ("for each in answer.result()]", "for each in answer.result()[:1]]", ORDERED),
            ("in _at_once(calls) for", "in _at_once(calls)[::-1] for", ORDERED),
            ("range(1 + LOSSES)", "range(LOSSES)", "losses_in_a_row_are_an_error"),
            (
                "                    self._replace(place)\n",
                "                    pass\n",
                "losses_in_a_row_are_an_error",
            ),
            ("with contextlib.suppress(Lost):  # one", "with contextlib.suppress(KeyError):  # one", STARTING),
            ("preferred if preferred in self._idle else min(self._idle)", "preferred", NOBODY),
            ("preferred if preferred in self._idle else min(self._idle)", "0", SAME),
            ("preferred if preferred in self._idle else min(self._idle)", "max(self._idle)", SAME),
            ("                self._idle.add(place)\n", "", "a_call_waits_for_a_process_that_is_in_use"),
            ("            self._idle.remove(place)\n", "", "a_call_waits_for_a_process_that_is_in_use"),
            ('daemon=True, name="scoring").start()', "daemon=True).run()", "shares_are_scored_at_the_same_time"),
            (
                "self.replaced += 1\n        self._build([place])",
                "self.replaced += 1",
                "the_share_of_a_process_that_is_lost_is_scored_again",
            ),
            ("if place in self._unbuilt:", "if False:", "a_process_that_cannot_load_again_scores_nothing"),
            (
                'self._ledger.note("scoring", [place], seconds)',
                "pass",
                "what_each_scores_is_in_its_metrics_and_its_spans",
            ),
            ('self.actors.call(0, "precision", precision)', 'self.actors.call(0, "precision", "bfloat16")', ORDERED),
            (
                "except Exception as error:  # whatever",
                "except KeyError as error:  # whatever",
                "tasks_that_cannot_be_sent_are_an_error_that_says_so",
            ),
        ]
    ),
    *(
        Mutation("distributed/scorers.py", old, new, f"{FUNCTIONS}::test_{test}")
        for old, new, test in [
            ('groups if function.mode == "group" else split', "split", f"{ORDERED}[group-two]"),
            (
                'groups if function.mode == "group" else split',
                "groups",
                "episodes_are_shared_evenly_whatever_their_group",
            ),
            (
                "[next(flat) for _ in group.episodes]",
                "[next(flat) for _ in group.episodes][::-1]",
                f"{ORDERED}[group-two]",
            ),
            ("groups, timeout_s=timeout_s))", "groups, timeout_s=60.0))", "the_error_is_that_of_one_process"),
            ("        TIME_LIMITS.learn(timed_out)\n", "", TIMED_OUT),
            ("TIME_LIMITS.known - timed_out", "frozenset()", TIMED_OUT),
            (
                "except UserError as error:",
                "except RewardError as error:",
                "a_function_that_cannot_be_loaded_is_an_error_before_anything_is_scored",
            ),
            (
                "        except Exception as error:\n",
                "        except KeyError as error:\n",
                "what_cannot_be_read_there_is_an_error_that_says_so",
            ),
            (
                "            self._stopped = True\n",
                "",
                "who_waits_for_a_function_that_hangs_gets_an_error_when_all_is_stopped",
            ),
        ]
    ),
    *(
        Mutation("distributed/group.py", old, new, "distributed/test_group.py")
        for old, new in [
            ("self._asked = self._asked, time.monotonic()", "_ = self._asked, None"),
            ("self._busy_s = self._busy_s, [0.0] * len(self._busy_s)", "_ = self._busy_s, None"),
            ("tokens, self._tokens = self._tokens, [0] * len(self._tokens)", "tokens = self._tokens"),
            ("count / max(s, LEAST_S)", "count / max(sum(busy_s), LEAST_S)"),
            ("found, self._spans = self._spans, []", "found = self._spans"),
            ("seconds if busy else 0.0", "seconds"),
            ("now - seconds, now", "now, now + seconds"),
            ("min(1.0, s / passed_s)", "s / passed_s"),
            ("- before, LEAST_S)", "- before, 0.0)"),
        ]
    ),
    *(
        Mutation("setup/reward_models.py", old, new, SCORERS)
        for old, new in [
            ("found.pop() if options.gold_model else None", "None"),
            ("group.ask(number)", "group.ask(0)"),
            ("            refuse_idle_scorers(bool(where or chats or functions))\n", ""),
            ("self._group.metrics", "backend.metrics"),
            ("(*backend.logged, self._group.log_in)", "backend.logged"),
            ("[backend.spans, self._group.spans]", "[backend.spans]"),
        ]
    ),
    *(
        Mutation("setup/reward_models.py", old, new, f"{SCORERS}::test_a_judge_and_a_player_in_a_scorer_{SAY}")
        for old, new in [
            ("partial(_chat, group, number, chats[number])", "partial(_chat, group, 0, chats[number])"),
            ("model.made_by(partial", "(lambda _: None)(partial"),
        ]
    ),
    *(
        Mutation("setup/reward_models.py", old, new, f"{FUNCTIONS}::test_a_run_with_a_scorer_is_that_of_one_process")
        for old, new in [
            (", parsed.moved(group.call)", ", parsed"),
            ("bool(where or chats or functions)", "bool(where or chats)"),
        ]
    ),
    *(
        Mutation(f"distributed/{file}.py", old, new, ROUTING)
        for file, old, new in [
            ("samplers", "with contextlib.suppress(Lost):", "with contextlib.suppress(ChannelError):"),
            ("samplers", "isinstance(answer.error, Lost | ChannelError)", "isinstance(answer.error, ChannelError)"),
            ("routing", "except Lost as again:", "except KeyError as again:"),
            ("routing", "self._losses > LOSSES:", "self._losses > LOSSES + 1:"),
            ("routing", "if not 0 < tokens <= most:", "if not 0 <= tokens <= most:"),
            ("routing", "if not 0 < tokens <= most:", "if not 0 < tokens:"),
            ("routing", "if tokens != len(completion.logprobs):", "if False:"),
        ]
    ),
    Mutation(
        "distributed/trainers.py",
        "self._group if self._size > 1 else ALONE",
        "self._group",
        f"{GROUP}::test_a_single_rank_runs_no_collectives",
    ),
    *(
        Mutation(f"distributed/{file}.py", old, new, f"{RECIPES}::test_a_slow_rank_changes_no_bit_and_is_named")
        for file, old, new in [
            ("process_group", "_WAITED[0] += time.monotonic() - began", "_WAITED[0] += 0.0"),
            ("trainers", "seconds.index(min(seconds))", "seconds.index(max(seconds))"),
            ("trainers", "max(seconds) - min(seconds)", "max(seconds) - max(seconds)"),
            ("trainers", 'self._waited = self._waited, self.all("waited")', '_ = self._waited, self.all("waited")'),
        ]
    ),
    Mutation(
        "distributed/process_group.py",
        'raise ProcessLost(f"a trainer',
        'raise TrainingError(f"a trainer',
        f"{GROUP}::test_a_rank_that_wakes_after_the_others_gave_up_ends_with_them",
    ),
    Mutation(
        "distributed/sharding.py",
        "os.posix_fallocate(file.fileno(), 0, tensor.nbytes)",
        "pass",
        f"{SHARDING}::test_a_full_disk_where_weights_are_gathered_is_an_error_of_no_later_call",
    ),
    *(
        Mutation(f"{file}.py", old, new, f"{SHARDING}::test_{test}")
        for file, old, new, test in [
            (
                "distributed/sharding",
                "if sum(sharded) > APART_BYTES:",
                "if False:",
                "rows_that_are_missing_are_not_made_up",
            ),
            (
                "training/sharded_files",
                "rows.get(name) != math.prod(shape)",
                "False",
                "rows_that_are_missing_are_not_made_up",
            ),
            ("training/sharded_files", "1 + end // FILE_BYTES", "1", "rows_that_are_missing_are_not_made_up"),
            (
                "training/sharded_files",
                "(error, OSError)",
                "(error, ())",
                "a_full_disk_of_one_rank_is_an_error_of_no_later_call",
            ),
        ]
    ),
    *(
        Mutation(f"distributed/{file}.py", old, new, "distributed/test_replicas.py")
        for file, old, new in [
            ("sharding", "ranks.rank % ranks.shards", "ranks.rank"),
            ("sharding", "sharded / (self._ranks.size // self._ranks.shards)", "sharded"),
            ("sharding", "math.ceil(len(tensor) / self._ranks.shards)", "math.ceil(len(tensor) / self._ranks.size)"),
            ("fsdp_calls", "wide[start : start + rounded.numel()].view(rounded.shape)", "rounded.to(wide.dtype)"),
            ("process_group", "for each in (ranks.T, ranks)", "for each in (ranks, ranks.T)"),
            ("process_group", "if columns == self.size:", "if True:"),
        ]
    ),
    Mutation("distributed/cluster.py", "key=lambda bundle: (met.index(nodes[bundle]), bundle)", "key=int", CLUSTER),
    Mutation(
        "training/local_learner.py",
        "together(lambda: self._trained.save(folder, writes=writes), self._ranks)",
        "self._trained.save(folder, writes=writes)",
        f"{SHARDING}::test_a_full_disk_where_weights_are_gathered_is_an_error_of_no_later_call",
    ),
    Mutation(
        "setup/backend.py",
        'log_in(run / "logs")',
        "log_in(run)",
        f"{RECIPES}::test_a_slow_rank_changes_no_bit_and_is_named",
    ),
]
