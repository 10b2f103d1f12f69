"""Sessions of clients: whose each is. They outlive the server, so that a client goes on with the next one."""

import os
import re
import uuid
from pathlib import Path

from posttrain.errors import UserError
from posttrain.serving.files import read_json, write_json

_ID = re.compile(r"[0-9a-f]{32}")


class Sessions:
    """All sessions, a file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, owner: str) -> str:
        """Begin one and return its id."""
        session_id = uuid.uuid4().hex
        write_json(self._folder / f"{session_id}.json", {"owner": owner})
        return session_id

    def hear(self, session_id: str) -> None:
        """Note that a client is there."""
        if _ID.fullmatch(session_id) and (path := self._folder / f"{session_id}.json").exists():
            os.utime(path)

    def heard(self, session_id: str) -> float:
        """When a client was last there, in seconds since 1970."""
        return (self._folder / f"{session_id}.json").stat().st_mtime

    def check(self, owner: str, session_id: str) -> str:
        """The id of a session of the owner; raises `UserError` if it is none."""
        found = read_json(self._folder / f"{session_id}.json") if _ID.fullmatch(session_id) else None
        if found is None or found["owner"] != owner:
            raise UserError(f"there is no session '{session_id[:80]}'")
        return session_id
