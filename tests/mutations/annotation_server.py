"""Faults of the annotation server: names, sessions, invitations for the first manager, file modes, timeouts."""

from tests.mutations import Mutation

SECURITY = "annotation/app/test_security.py"
PEOPLE = "annotation/store/test_people.py"
TIMEOUTS = "recipes/test_annotate_timeouts.py"
BACKUP = "annotation/store/test_backup.py"

MUTATIONS = [
    *(
        Mutation("annotation/app/security.py", old, new, SECURITY)
        for old, new in [
            ("or len(length) > 18", ""),
            ('if name in ("localhost", *names):', "if True:"),
            ('.rstrip(".")', ""),
            ("if origin not in (None, url) and", "if origin is not None and"),
            ("if len(found) == 1 else", "if found else"),
        ]
    ),
    Mutation("annotation/app/admin.py", "and len(text) < 10)", ")", "annotation/app/test_admin.py"),
    Mutation("annotation/app/admin.py", "{desk.url}/invite", "{request.base_url}/invite",
             "annotation/app/test_admin.py"),
    Mutation("annotation/app/main.py", "        redirect_slashes=False,\n", "", "annotation/app/test_admin.py"),
    *(
        Mutation("annotation/app/auth.py", old, new, SECURITY)
        for old, new in [
            ("        _leave(connection, request)\n        entry = people.enter", "        entry = people.enter"),
            ("            _leave(connection, request)\n            entry", "            entry"),
        ]
    ),
    *(
        Mutation("annotation/store/people.py", old, new, PEOPLE)
        for old, new in [
            ("        _end_sessions(connection, user)  # or", "        pass  # or"),
            ("    _end_sessions(connection, user)\n    return True", "    return True"),
            ("(Session.user_id == user.id, Session", "(Session"),
            ("good = (Invite.bootstrap, Invite", "good = (Invite"),
            ('    elif user.role == "manager":\n', "    elif False:\n"),
            ('    if user.role == "manager":\n        connection', "    if False:\n        connection"),
            ("        connection.flush()\n        _end_bootstrap(connection)\n    if new", "    if new"),
            ('return "" if managers(connection) else', "return"),
        ]
    ),
    *(
        Mutation("annotation/store/database.py", old, new, "annotation/store/test_database.py")
        for old, new in [
            ("if file is not None and not file.exists():", "if False:"),
            ("PRIVATE = 0o600", "PRIVATE = 0o640"),
            ('LOGS = ("-wal", "-shm")', "LOGS = ()"),
            ("    if file is not None:\n        _make_private(file)\n", ""),
        ]
    ),
    *(
        Mutation("recipes/annotate/http_timeouts.py", old, new, TIMEOUTS)
        for old, new in [
            ("(transport)\n        self.head_timer = self.loop.call_later(HEAD_SECONDS, self._late)", "(transport)"),
            ("return bool(cycle) and not cycle.response_complete", "return bool(cycle)"),
            ("self.transport.is_closing() or self._answering()", "self.transport.is_closing()"),
            ("            self.transport.write(LATE)\n", "            pass\n"),
        ]
    ),
    *(
        Mutation("annotation/app/security.py", old, new, TIMEOUTS)
        for old, new in [
            ("max(0.0, until - time.monotonic())", "BODY_SECONDS"),
            ("except ClientDisconnect:", "except ZeroDivisionError:"),
        ]
    ),
    *(
        Mutation("annotation/store/backup.py", old, new, BACKUP)
        for old, new in [
            ('        copy.execute("PRAGMA journal_mode = DELETE")', "        pass"),
            ('.fetchone()[0]) != "ok":', '.fetchone()[0]) == "never":'),
            ('if not {"alembic_version", "judgements"} <= tables:', "if not tables:"),
            ("    if output.exists():\n", "    if False:\n"),
            (", password=None)", ")"),
            ("            Path(name + end).unlink(missing_ok=True)\n", "            pass\n"),
            ("?mode=rw", "?immutable=1"),
        ]
    ),
]  # fmt: skip
