"""Sessions of clients: whose each is. They outlive the server, so that a client goes on with the next one."""

import os
import re
import time
import uuid
from pathlib import Path
from threading import Lock

from posttrain.errors import UserError
from posttrain.serving.files import read_json, write_json

IDLE_SECONDS = 3600.0  # since a session was last heard of, after which it makes room for others of its key
KEPT_SECONDS = 30 * 86400.0  # after which it is forgotten
_ID = re.compile(r"[0-9a-f]{32}")


class Sessions:
    """All sessions, a file each, whose time is when the client was last there."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most, self._lock = folder, most, Lock()
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        self._heard = {path.stem: path.stat().st_mtime for path in found}
        self._owners = {path.stem: str(read_json(path)["owner"]) for path in found}

    def create(self, owner: str) -> str:
        """Begin one and return its id.

        Raises:
            UserError: the owner has too many whose clients are there.
        """
        with self._lock:
            now, mine = time.time(), [each for each, of in self._owners.items() if of == owner]
            mine.sort(key=self.heard)
            surplus = len(mine) - self._most + 1
            for number, old in enumerate(mine):
                if number >= surplus and self.heard(old) > now - KEPT_SECONDS:
                    break
                if self.heard(old) > now - IDLE_SECONDS:
                    raise UserError(f"a key may have {self._most} sessions; end one of your clients")
                (self._folder / f"{old}.json").unlink(missing_ok=True)
                del self._owners[old], self._heard[old]
            session_id = uuid.uuid4().hex
            write_json(self._folder / f"{session_id}.json", {"owner": owner})
            self._owners[session_id], self._heard[session_id] = owner, now
        return session_id

    def hear(self, session_id: str, when: float | None = None) -> None:
        """Note that a client is there, or with 0 that it has ended."""
        with self._lock:
            if session_id in self._owners:
                self._heard[session_id] = time.time() if when is None else when
                at = self._heard[session_id]
                os.utime(self._folder / f"{session_id}.json", (at, at))

    def heard(self, session_id: str) -> float:
        """When a client was last there, in seconds since 1970; 0 if it has ended, or is forgotten."""
        return self._heard.get(session_id, 0.0)

    def check(self, owner: str, session_id: str) -> str:
        """The id of a session of the owner; raises `UserError` if it is none."""
        if not _ID.fullmatch(session_id) or self._owners.get(session_id) != owner:
            raise UserError(f"there is no session '{session_id[:80]}'")
        return session_id
