"""Users, invitations and sessions.

Passwords are kept as scrypt (RFC 7914) with a salt of their own. Of invitations and sessions the database has SHA-256
only: who reads it cannot come in by it. Their secrets are 256 random bits, so that guessing is hopeless.
"""

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.database import record
from posttrain.annotation.store.tables import Invite, Member, Session, User, now
from posttrain.errors import UserError

ROLES = ("annotator", "manager")

SHORTEST = 8  # letters of a password
_NAME = re.compile(r"[\w.@+-][\w.@+ -]{0,78}[\w.@+-]|[\w.@+-]")
_COST = {"n": 2**14, "r": 8, "p": 1}  # 16 MB and some 50 ms for each guess


class Refused(UserError):
    """A refused action; its message is shown to the user."""


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _hashed(password: str, salt: bytes) -> str:
    return f"scrypt${salt.hex()}${hashlib.scrypt(password.encode(), salt=salt, **_COST).hex()}"


def _in(time: timedelta) -> str:
    return (datetime.now(UTC) + time).isoformat(timespec="milliseconds")


def invite(
    connection: Connection,
    role: str,
    *,
    project: int | None = None,
    uses: int = 1,
    days: float = 7,
    by: int | None = None,
    bootstrap: bool = False,
) -> str:
    """Make an invitation and return its secret, which is not kept; `bootstrap` ends when there is a manager."""
    secret = secrets.token_urlsafe(32)
    connection.add(
        Invite(
            digest=_digest(secret),
            role=role,
            project_id=project,
            uses_left=uses,
            created_by=by,
            bootstrap=bootstrap,
            expires=_in(timedelta(days=days)),
        )
    )
    record(connection, by, "invite", role, project=project, uses=uses, days=days)
    return secret


def bootstrap_invitation(connection: Connection) -> str:
    """The secret of a new invitation for the first manager, good for a day; "" where there is a manager.

    Those that were made before are ended, so that of several starts only the last one's is good.
    """
    _end_bootstrap(connection)
    able = select(User.id).where(User.role == "manager", ~User.disabled).limit(1)
    return "" if connection.scalar(able) else invite(connection, "manager", days=1, bootstrap=True)


def _end_bootstrap(connection: Connection) -> None:
    good = (Invite.bootstrap, Invite.uses_left > 0)
    ended = connection.scalars(select(Invite.id).where(*good)).all()
    if ended:
        connection.execute(update(Invite).where(*good).values(uses_left=0))
        record(connection, None, "end invitations", "manager", invites=list(ended))


def invitation(connection: Connection, secret: str, *, locked: bool = False) -> Invite | None:
    """The invitation that a secret opens, if it is still good; `locked` against concurrent use."""
    query = select(Invite).where(Invite.digest == _digest(secret))
    found = connection.scalar(query.with_for_update() if locked else query)
    return found if found and found.uses_left > 0 and found.expires > now() else None


def sealed(password: str) -> str:
    """The scrypt hash of a new password; slow. Raises `Refused` for an unsuitable one."""
    if len(password) < SHORTEST:
        raise Refused(f"a password has at least {SHORTEST} letters")
    return _hashed(password, secrets.token_bytes(16))


def accept(connection: Connection, secret: str, name: str, kept: str) -> User:
    """Make a user by an invitation; raises `Refused` if it is not good, or the name will not do.

    The name must be unique; `kept` is of the password, by `sealed`.
    """
    found = invitation(connection, secret, locked=True)
    if found is None:
        raise Refused("this invitation is not good any more; ask for another one")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise Refused("a name has 1 to 80 letters, digits, spaces and . @ + - _")
    taken = Refused(f"the name '{name}' is taken")
    if connection.scalar(select(User.id).where(func.lower(User.name) == name.lower())) is not None:
        raise taken
    user = User(name=name, role=found.role, password=kept)
    connection.add(user)
    try:
        connection.flush()
    except IntegrityError as problem:
        raise taken from problem
    found.uses_left -= 1
    record(connection, user.id, "accept", user.name, role=found.role)
    if user.role == "manager":
        connection.flush()
        _end_bootstrap(connection)
    if found.project_id is not None:
        admit(connection, user, found.project_id)
    return user


def admit(connection: Connection, user: User, project: int) -> None:
    """Let a user work in a project."""
    connection.add(Member(project_id=project, user_id=user.id))
    record(connection, user.id, "join", user.name, project=project)


def join(connection: Connection, secret: str, user: User) -> bool:
    """Apply an invitation to an existing user: its project and its role; never a lesser role.

    Returns whether there was anything to give. If so, their sessions are ended: one that somebody else holds does not
    become a manager's with them.
    """
    found = invitation(connection, secret, locked=True)
    if found is None:
        raise Refused("this invitation is not good any more; ask for another one")
    user = connection.get_one(User, user.id)
    role = max(found.role, user.role, key=ROLES.index)
    new = found.project_id is not None and connection.get(Member, (found.project_id, user.id)) is None
    if not new and role == user.role:
        return False
    found.uses_left -= 1
    if role != user.role:
        user.role = role
        record(connection, user.id, "accept", user.name, role=role)
        connection.flush()
        _end_bootstrap(connection)
    if new and found.project_id is not None:
        admit(connection, user, found.project_id)
    _end_sessions(connection, user)
    return True


_NOBODY = _hashed("", bytes(16))  # so that an unknown name takes as long as a wrong password


def known(connection: Connection, name: str, password: str) -> User | None:
    """The user of this name, if the password is right."""
    user = connection.scalar(select(User).where(func.lower(User.name) == name.strip().lower()))
    kept = user.password if user else _NOBODY
    right = hmac.compare_digest(kept, _hashed(password, bytes.fromhex(kept.split("$")[1])))
    return user if user and right and not user.disabled else None


def enter(connection: Connection, user: User, *, days: float = 30) -> str:
    """Begin a session; returns its cookie."""
    cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(24)
    connection.add(Session(digest=_digest(cookie), csrf=csrf, user_id=user.id, expires=_in(timedelta(days=days))))
    record(connection, user.id, "enter", user.name)
    return cookie


def session(connection: Connection, cookie: str) -> Session | None:
    """The session of a cookie, if it is still valid."""
    found = connection.scalar(select(Session).where(Session.digest == _digest(cookie)))
    return found if found and found.expires > now() and not found.user.disabled else None


def leave(connection: Connection, cookie: str) -> None:
    """End a session."""
    if (found := session(connection, cookie)) is not None:
        connection.execute(update(Session).where(Session.id == found.id).values(expires=now()))
        record(connection, found.user_id, "leave", found.user.name)


def _end_sessions(connection: Connection, user: User) -> None:
    good = (Session.user_id == user.id, Session.expires > now())
    connection.execute(update(Session).where(*good).values(expires=now()))


def everybody(connection: Connection) -> list[User]:
    """All users, the oldest first."""
    return list(connection.scalars(select(User).order_by(User.id)))


def lock(connection: Connection, name: str, disabled: bool) -> None:
    """Lock a user out, or let them in again; raises `Refused` if there is none of this name."""
    user = connection.scalar(select(User).where(func.lower(User.name) == name.strip().lower()))
    if user is None:
        raise Refused(
            f"there is no user '{name}'; there are: {', '.join(u.name for u in everybody(connection)) or 'none'}"
        )
    user.disabled = disabled
    connection.flush()
    if disabled:
        _end_sessions(connection, user)  # or they would be good again when the user is let in
    elif user.role == "manager":
        _end_bootstrap(connection)
    record(connection, None, "lock" if disabled else "unlock", user.name)
