"""Keys of clients, of which the file has SHA-256 only: their secrets are 256 random bits, so guessing is hopeless."""

import hashlib
import re
import secrets
from pathlib import Path

from filelock import FileLock

from posttrain.errors import UserError
from posttrain.serving.files import read_json, write_json

PREFIX = "tml-"  # without which the SDK refuses a key
_NAME = re.compile(r"[\w.@-]{1,64}")


class Keys:
    """The keys of a server, by their owners' names.

    Where there never was one, every key is taken, and all are one owner. Once there was one, clients need a key, also
    when the last one is removed: the file stays. Without the file, this holds until the process ends.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._needed = path, False

    @classmethod
    def of(cls, store: Path) -> "Keys":
        """The keys of the server in a folder, which is made if it is missing."""
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(store / "keys.json")

    @property
    def needed(self) -> bool:
        """Whether clients need a key."""
        self._by_name()
        return self._needed

    def owners(self) -> list[str]:
        """The names of those who have a key."""
        return sorted(self._by_name())

    def add(self, name: str) -> str:
        """Make a key and return it, which is not kept; raises `UserError` if the name has one, or will not do."""
        if not _NAME.fullmatch(name):
            raise UserError(f"a key's name has 1 to 64 letters, digits and _ . @ -; got '{name[:80]}'")
        secret = PREFIX + secrets.token_urlsafe(32)
        with FileLock(f"{self.path}.lock"):  # of one process or thread of all, from reading to writing
            found = self._by_name()
            if name in found:
                raise UserError(f"'{name}' has a key; remove it first")
            write_json(self.path, found | {name: _digest(secret)})
        return secret

    def remove(self, name: str) -> None:
        """End a key; raises `UserError` if there is none of this name."""
        with FileLock(f"{self.path}.lock"):
            found = self._by_name()
            if found.pop(name, None) is None:
                raise UserError(f"'{name}' has no key; those who have one: {', '.join(sorted(found)) or 'nobody'}")
            write_json(self.path, found)

    def owner(self, secret: str) -> str | None:
        """Whose key it is, "" where none is needed; None if it is nobody's."""
        if not secret.startswith(PREFIX):
            return None
        found = self._by_name()
        if not self._needed:
            return ""
        digest = _digest(secret)
        return next((name for name, kept in found.items() if secrets.compare_digest(kept, digest)), None)

    def _by_name(self) -> dict[str, str]:
        found = read_json(self.path)
        # never False again: who removes the last key, or the file, would else open a running server to everybody
        self._needed = self._needed or found is not None
        return dict(found or {})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
