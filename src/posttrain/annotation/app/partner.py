"""Who replies in conversations: one thread that lets a model answer all who wait, together."""

from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread

from posttrain.annotation.store import conversations
from posttrain.annotation.store.database import Store

Replies = list[tuple[str, str]] | str
"""Two texts, each with the model that wrote it; or why there are none."""

Speak = Callable[[Sequence[tuple[int, Sequence[Mapping[str, str]]]]], list[Replies]]
"""Conversations in, each with a number that decides what is drawn; two replies to each out."""

TOGETHER = 8  # conversations that are answered at once


class Partner:
    """Answers what waits in the store, from its start until it is closed.

    What could not be answered is not tried again until somebody asks for it.
    """

    def __init__(self, store: Store, speak: Speak) -> None:
        self._store, self._speak = store, speak
        self._wanted, self._closed = Event(), False
        self._troubles: dict[int, str] = {}
        self._thread = Thread(target=self._work, name="partner", daemon=True)

    def start(self) -> None:
        """Begin, with what was left from before."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End after the replies that are being written."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

    def wake(self, turn: int) -> None:
        """There is a turn to answer, for the first time or again."""
        self._troubles.pop(turn, None)
        self._wanted.set()

    def trouble(self, turn: int) -> str:
        """Why a turn has no replies; "" where they are still to come."""
        return self._troubles.get(turn, "")

    def answer(self) -> int:
        """Answer those who have waited longest; returns how many were answered or cannot be."""
        with self._store.read() as connection:
            turns = conversations.waiting(connection, TOGETHER + len(self._troubles))
            asked = [(turn.id, conversations.transcript(turn)) for turn in turns if turn.id not in self._troubles]
        asked = asked[:TOGETHER]
        try:
            found = self._speak(asked) if asked else []
        except Exception as problem:  # whatever it was, this thread must go on, and people must hear of it
            found = [f"the model failed: {problem}"] * len(asked)
        for (turn, _), replies in zip(asked, found, strict=True):
            if isinstance(replies, str):
                self._troubles[turn] = replies
            else:
                with self._store.write() as connection:
                    conversations.reply(connection, turn, replies)
        return len(asked)

    def _work(self) -> None:
        while not self._closed:
            self._wanted.wait()
            self._wanted.clear()
            while not self._closed and self.answer():
                pass
