"""Incremental agreement and per-annotator statistics of a project.

Judgements and rulings are only ever added, and within a project one by one (`one_by_one`), so that their ids rise in
the order in which they are committed: the rows above the highest id that was read are all that is new. A new row
changes the numbers of its own item; what is left for each reading are means over items.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

from sqlalchemy import and_, case, func, select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation import agreement
from posttrain.annotation.aggregation import majority
from posttrain.annotation.rankings import agree
from posttrain.annotation.store.database import Store
from posttrain.annotation.store.tables import Assignment, Item, Judgement, Project, Ruling, User
from posttrain.annotation.task_kinds import KINDS, Answer, Kind
from posttrain.types import Ranking

FREE = 0.01  # seconds of processor time that a reading may take each time
REST = 19  # after a longer one its result is cached for this many times its duration, for all readers


class Work(NamedTuple):
    """Statistics of one annotator."""

    done: int
    skipped: int
    seconds: float | None  # of an item, the median
    checks: tuple[int, int]  # items whose answer is known: how many were answered so, of how many
    repeats: tuple[int, int]  # items that came a second time: how many were answered alike, of how many


class Dispute(NamedTuple):
    """An item on which annotators do not agree."""

    item: int  # its id
    agreement: float  # Kendall's W, or the share of those who say what most say
    decided: str  # by whom; "" if undecided


class Statistics(NamedTuple):
    """Statistics of a project."""

    alpha: float | None
    kendall_w: float | None
    annotators: list[agreement.Annotator]
    work: dict[str, Work]  # by annotator
    disputes: list[Dispute]  # undecided items first, then by least agreement


class _Said(NamedTuple):
    """What an annotator says now of an item."""

    assignment: int
    answer: Answer
    seconds: float


@dataclass
class _ItemState:
    """A judged item, and its statistics where they are defined."""

    name: str
    expected: Answer | None
    began: int  # the lowest id of its assignments that have been answered
    first: dict[str, _Said] = field(default_factory=dict[str, _Said])  # by annotator, when they met it first
    again: dict[str, _Said] = field(default_factory=dict[str, _Said])  # when it came a second time
    shares: agreement.Shares | None = None
    kendall_w: float | None = None
    units: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    agreement: float | None = None


class ProjectStatistics:
    """The statistics of one project in this process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._items: dict[int, _ItemState] = {}
        self._rulings: dict[int, tuple[Answer, str]] = {}  # by item: what was decided last, and by whom
        self._judgement = self._ruling = 0  # the highest ids that were read
        self._kept: Statistics | None = None
        self._until = 0.0  # until when it is kept

    def read(self, connection: Connection, project: Project) -> Statistics:
        """The statistics as they are now, or a moment ago where a project is so large that reading it takes a while.

        Of several that read at once one updates, and the others wait for it; managers together take a twentieth of a
        processor at most. A new decision is always there.
        """
        with self._lock:
            decided = select(Ruling.id).join(Item, Item.id == Ruling.item_id)
            decided = decided.where(Item.project_id == self.number, Ruling.id > self._ruling).limit(1)
            if self._kept is None or time.monotonic() >= self._until or connection.scalar(decided) is not None:
                began = time.thread_time()
                self._kept = self._read(connection, project)
                spent = time.thread_time() - began
                self._until = time.monotonic() + (REST * spent if spent > FREE else 0.0)
            return self._kept

    def _read(self, connection: Connection, project: Project) -> Statistics:
        kind = KINDS[project.kind]
        for number in self._new(connection):
            if number in self._items:
                _measure(self._items[number], kind, self._rulings.get(number))
        judged = sorted(self._items.items(), key=lambda pair: pair[1].began)
        compared = [state for _, state in judged if state.shares is not None]
        ws = [state.kendall_w for state in compared if state.kendall_w is not None]
        alpha = None
        if kind.ranking is not None:
            alpha = agreement.alpha_of((unit for state in compared for unit in state.units), "ordinal")
        elif (verdict := kind.verdict) is not None:
            said = (state.first.values() for state in compared)
            alpha = agreement.alpha_of((tuple(verdict(one.answer) for one in mine) for mine in said), "nominal")
        disputes = [
            Dispute(number, state.agreement, self._rulings[number][1] if number in self._rulings else "")
            for number, state in judged
            if state.agreement is not None and state.agreement < 1
        ]
        shares = filter(None, (state.shares for state in compared))
        return Statistics(
            alpha,
            fmean(ws) if ws else None,
            agreement.annotators(shares, name_noisy=kind.ranking is not None),
            self._work(connection, kind),
            sorted(disputes, key=lambda one: (bool(one.decided), one.agreement)),
        )

    def _new(self, connection: Connection) -> set[int]:
        changed: set[int] = set()
        said_now = (Judgement.id, Judgement.answer, Judgement.seconds, Judgement.assignment_id)
        of = (Assignment.item_id, Assignment.repeat, Item.name, Item.expected, User.name.label("annotator"))
        query = select(*said_now, *of).join(Assignment, Assignment.id == Judgement.assignment_id)
        query = query.join(Assignment.item).join(User, User.id == Assignment.user_id)
        # + 0: SQLite is not to look for the project's items first, but at the last few judgements
        query = query.where(Judgement.id > self._judgement, Item.project_id + 0 == self.number)
        for row in connection.execute(query.order_by(Judgement.id)):
            state = self._items.setdefault(row.item_id, _ItemState(row.name, row.expected, row.assignment_id))
            state.began = min(state.began, row.assignment_id)
            said = state.again if row.repeat else state.first
            before = said.get(row.annotator)
            spent = before.seconds if before and "choices" in row.answer else 0.0  # a conversation: of all its choices
            said[row.annotator] = _Said(row.assignment_id, row.answer, spent + row.seconds)
            self._judgement = row.id
            changed.add(row.item_id)
        decided = select(Ruling.id, Ruling.item_id, Ruling.answer, User.name).join(User, User.id == Ruling.user_id)
        decided = decided.join(Item, Item.id == Ruling.item_id).where(Item.project_id == self.number)
        for row in connection.execute(decided.where(Ruling.id > self._ruling).order_by(Ruling.id)):
            self._rulings[row.item_id] = row.answer, row.name
            self._ruling = row.id
            changed.add(row.item_id)
        return changed

    def _work(self, connection: Connection, kind: Kind) -> dict[str, Work]:
        """By the annotators' names, in the order in which they began."""
        seconds: dict[str, list[float]] = {}
        checks: Counter[tuple[str, bool]] = Counter()
        repeats: Counter[tuple[str, bool]] = Counter()
        for state in self._items.values():
            for met in (state.first, state.again):
                for name, said in met.items():
                    seconds.setdefault(name, []).append(said.seconds)
            if state.expected is not None:
                checks.update((name, kind.same(said.answer, state.expected)) for name, said in state.first.items())
            for name, said in state.again.items():
                if name in state.first:
                    repeats[name, kind.same(said.answer, state.first[name].answer)] += 1
        unsaid = and_(Assignment.state == "skipped", ~Assignment.judgements.any())
        query = select(User.name, func.sum(case((unsaid, 1), else_=0)))
        query = query.join(Assignment, Assignment.user_id == User.id).join(Assignment.item)
        query = query.where(Item.project_id == self.number).group_by(User.id, User.name)
        return {
            name: Work(
                len(mine),
                int(skipped),
                median(mine) if mine else None,
                (checks[name, True], checks[name, True] + checks[name, False]),
                (repeats[name, True], repeats[name, True] + repeats[name, False]),
            )
            for name, skipped in connection.execute(query.order_by(func.min(Assignment.id)))
            if (mine := seconds.get(name, [])) or skipped
        }


class StatisticsCache:
    """The statistics of every project of a store, kept in memory from one page to the next."""

    def __init__(self) -> None:
        self._projects: dict[int, ProjectStatistics] = {}

    def read(self, connection: Connection, project: Project) -> Statistics:
        """The statistics of a project."""
        return self._projects.setdefault(project.id, ProjectStatistics(project.id)).read(connection, project)

    def warm(self, store: Store) -> None:
        """Read all projects once, so that the first page does not wait for it."""
        with store.read() as connection:
            for project in connection.scalars(select(Project).order_by(Project.id)).all():
                self.read(connection, project)


def statistics_of(connection: Connection, project: Project) -> Statistics:
    """The statistics of a project, read once."""
    return ProjectStatistics(project.id).read(connection, project)


def _measure(state: _ItemState, kind: Kind, ruling: tuple[Answer, str] | None) -> None:
    """Compute the agreement on an item. Attention checks have none."""
    if state.expected is not None or not state.first:
        return
    said = sorted(state.first.items(), key=lambda pair: pair[1].assignment)
    if kind.alike is not None:
        state.agreement = kind.alike([one.answer for _, one in said])
    if kind.ranking is not None:
        rankings = [Ranking(state.name, name, *kind.ranking(one.answer)) for name, one in said]
        decided = {state.name: Ranking(state.name, "", *kind.ranking(ruling[0]))} if ruling else {}
        agreed = agree(rankings, majority(rankings), decided)
        state.shares = agreement.shares(rankings, agreed, majority, decided)
        state.kendall_w = agreement.kendall_w(rankings)
        state.units = agreement.unit_ranks(rankings)
        if kind.alike is None:
            state.agreement = state.kendall_w
    elif kind.verdict is not None:
        verdicts: Mapping[str | int, Any] = {name: kind.verdict(one.answer) for name, one in said}
        state.shares = agreement.verdict_shares(verdicts, *([kind.verdict(ruling[0])] if ruling else []))
