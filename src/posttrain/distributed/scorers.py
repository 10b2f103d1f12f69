"""Reward models in processes of a Ray cluster.

    with ScorerGroup(2, load) as group:
        group.ask(0)(conversations)     # by the first of the models that `load` returns

Each process has all reward models, and scores its share of every batch of conversations. One that dies or hangs is
replaced, and its share is scored again.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from posttrain.distributed import cluster, connection
from posttrain.distributed.cluster import Lost
from posttrain.distributed.group import Group, Ledger
from posttrain.errors import ProcessLost
from posttrain.rollouts.scorer import Scorer, ScorerFacts
from posttrain.runs.timeline import Span
from posttrain.types import Message, ScoreFn

LOSSES = 5  # of processes, for one batch: then something else is wrong

Load = Callable[[str], Sequence[Scorer]]
"""From the name of a number format to the reward models."""


class ScoringProcess(cluster.Process):
    """Has reward models, in the process of an actor."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def build(self, load: Load, precision: str) -> list[ScorerFacts]:
        """Load the reward models."""
        self._models = load(precision)
        return [scorer.facts for scorer in self._models]

    def scores(self, model: int, conversations: Sequence[Sequence[Message]]) -> tuple[list[tuple[float, ...]], float]:
        """The scores of conversations by one of the models, and the seconds that took."""
        began = time.monotonic()
        return self._models[model](conversations), time.monotonic() - began


class ScorerGroup(Group):
    """Processes that have reward models; a context manager, at whose end they are gone.

    Args:
        size: how many.
        load: loads the models in each; it is pickled.
        precision: number format of the models; `auto` is what the first process finds fastest, for all of them.
        share: what each gets of a machine.
        timeout_s: how long a process may take to score its share before it counts as lost.

    Attributes:
        facts: of the models.
        replaced: number of processes that were lost and replaced.

    Raises:
        UserError: Ray is not installed, the cluster has no room for them, or a model cannot be loaded.
    """

    def __init__(
        self,
        size: int,
        load: Load,
        *,
        precision: str = "auto",
        share: cluster.Share = cluster.ONE_CPU,
        timeout_s: float = 600.0,
    ) -> None:
        connection.connect(cpus=size * share.cpus)
        self._load, self._timeout_s, self.replaced = load, timeout_s, 0
        each = [(cluster.threads_of(share.threads, size),)] * size
        self.actors = cluster.Actors("scorer", ScoringProcess, each, share.bundle(), {})
        self._replacing = threading.Lock()  # threads may score at the same time
        self._starts = [0] * size  # how often each was replaced
        self._ledger = Ledger("scorer", size)
        try:
            first = self.actors.collect({0: self.actors.call(0, "precision", precision)}, cluster.START_S)
            self._precision, _ = first[0].result()
            self.facts = self._build(range(size))
        except BaseException:
            self.stop()
            raise

    def ask(self, model: int) -> ScoreFn:
        """The scores of one of the models. Raises as `Scorer`, and `ProcessLost` if processes are lost in a row."""
        return partial(self._scores, model)

    def _scores(self, model: int, conversations: Sequence[Sequence[Message]]) -> list[tuple[float, ...]]:
        shares = _shares(conversations, len(self.actors))
        found: dict[int, list[tuple[float, ...]]] = {}
        why: Lost | None = None
        for _ in range(1 + LOSSES):
            starts = {place: self._starts[place] for place in shares if place not in found}
            calls = {place: self.actors.call(place, "scores", model, shares[place]) for place in starts}
            lost: dict[int, Lost] = {}
            for place, answer in self.actors.collect(calls, self._timeout_s).items():
                if isinstance(answer.error, Lost):
                    lost[place] = answer.error
                else:
                    found[place], seconds = answer.result()
                    self._ledger.note("scoring", [place], seconds)
            if not lost:
                return [scores for place in shares for scores in found[place]]
            why = next(iter(lost.values()))
            for place in lost:
                with contextlib.suppress(Lost):  # one that is lost while it starts is replaced by the next try
                    self._replace(place, starts[place])
        raise ProcessLost(f"scorers are lost one after another: {why}") from why

    def _replace(self, place: int, start: int) -> None:
        """Replace a process, unless another thread has done so since that start of it."""
        with self._replacing:
            if self._starts[place] == start:
                self.actors.replace(place)
                self._starts[place] += 1
                self.replaced += 1
                self._build([place])

    def _build(self, places: Sequence[int]) -> list[ScorerFacts]:
        calls = {place: self.actors.call(place, "build", self._load, self._precision) for place in places}
        found = [answer.result() for answer in self.actors.collect(calls, cluster.START_S).values()]
        return found[0]

    def metrics(self) -> Mapping[str, float]:
        """The share of time in which each has scored since the last call. Losses so far."""
        return {"cluster/scorers_replaced": float(self.replaced), **self._ledger.rates()[0]}

    def spans(self) -> list[Span]:
        """What they did since the last call."""
        return self._ledger.spans()


def _shares(conversations: Sequence[Sequence[Message]], processes: int) -> dict[int, Sequence[Sequence[Message]]]:
    """Neighbouring conversations for each process, as many for one as for another but one; none is empty.

    >>> _shares(["a", "b", "c", "d", "e"], 3)
    {0: ['a', 'b'], 1: ['c', 'd'], 2: ['e']}
    >>> _shares(["a"], 2)
    {0: ['a']}
    """
    size = -(-len(conversations) // processes)
    return {at // size: conversations[at : at + size] for at in range(0, len(conversations), max(size, 1))}
