"""Chat worker: one thread that answers all waiting conversations in batches."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread

from posttrain.annotation.store import conversations
from posttrain.annotation.store.database import Store

Candidate = tuple[str, str, str]
"""A text, the model that wrote it, and why it ended there (a `StopReason`)."""

Speak = Callable[[Sequence[tuple[int, Sequence[Mapping[str, str]]]]], list[list[Candidate] | str]]
"""Conversations in, each with a seed; two replies to each out, or why there are none."""

TOGETHER = 8  # conversations that are answered at once
PAUSE = 5.0  # seconds, after which a store that could not be reached is tried again


class Partner:
    """Answers the conversations that wait in the store, from its start until it is closed.

    A failed turn is retried only on request, with another seed.
    """

    def __init__(self, store: Store, speak: Speak, say: Callable[[str], None]) -> None:
        """Reply to waiting turns in `store`; `say` prints messages for the operator."""
        self._store, self._speak, self._say = store, speak, say
        self._wanted, self._closed = Event(), Event()
        self._troubles: dict[int, str] = {}
        self._tries: Counter[int] = Counter()
        self._thread = Thread(target=self._work, name="partner", daemon=True)

    def start(self) -> None:
        """Begin, with what was left from before."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End after the replies that are being written."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def wake(self, turn: int) -> None:
        """There is a turn to answer, for the first time or again."""
        if self._troubles.pop(turn, None) is not None:
            self._tries[turn] += 1
        self._wanted.set()

    def trouble(self, turn: int) -> str:
        """Why a turn has no replies; "" where they are still to come."""
        return self._troubles.get(turn, "")

    def answer(self) -> int:
        """Answer the longest-waiting turns; returns how many were answered or failed."""
        with self._store.read() as connection:
            found = conversations.waiting(connection, TOGETHER + len(self._troubles))
            turns = {turn.id: conversations.transcript(turn) for turn in found if turn.id not in self._troubles}
        asked = [(turn + (self._tries[turn] << 32), said) for turn, said in list(turns.items())[:TOGETHER]]
        for turn, replies in zip(turns, self._replies(asked), strict=False):
            if isinstance(replies, str):
                self._troubles[turn] = replies
            else:
                with self._store.write() as connection:
                    conversations.reply(connection, turn, replies)
        return len(asked)

    def _replies(self, asked: Sequence[tuple[int, Sequence[Mapping[str, str]]]]) -> list[list[Candidate] | str]:
        """The model's replies; if it fails on a batch, each conversation is retried alone."""
        try:
            return self._speak(asked) if asked else []
        except Exception as problem:  # this thread must survive any error, and users must see it
            if len(asked) > 1:
                return [replies for one in asked for replies in self._replies([one])]
            return [f"the model failed ({type(problem).__name__}); whoever serves it sees why"]

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            self._wanted.clear()
            try:
                while not self._closed.is_set() and self.answer():
                    pass
            except Exception as problem:  # the store cannot be reached; what waits is still in it
                self._say(f"replies wait, and are tried again: {problem}")
                self._closed.wait(PAUSE)
                self._wanted.set()
