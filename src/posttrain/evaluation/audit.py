"""An audit of a reward: what it pays that is wrong, and what it refuses that is right.

With the shares of right and of wrong texts that are paid, TPR and FPR,

    J = TPR - FPR,

Youden's index. In the analysis of RL with a noisy verifier by Rad et al. 2026 (https://arxiv.org/abs/2601.04411) wrong
ways to answer die out if J > 0 and take over if J < 0; above 0 noise only costs time. (The paper could be read in
summaries only.)

A text is paid if it earns at least half of the most that the rewards can give. Where that has no bounds, as with reward
models, the line is drawn for each task: halfway between the means of right and wrong texts.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from posttrain.errors import NoReplyError, RewardError, first_line
from posttrain.evaluation.attacks import (
    AROUND,
    BARE,
    GOLD,
    MARKED,
    PLACES,
    SIZES,
    SLOW,
    TAKEN_BACK,
    answer_of,
    attacks,
    right_forms,
)
from posttrain.evaluation.judging import totals
from posttrain.rewards import Weighted
from posttrain.rewards.reward import bounds_of, role_of
from posttrain.types import Task

SLOW_S = 6.0  # seconds for one text; every rollout waits for its slowest completion
SHOWN = 200  # characters of an example
AT_ONCE = 512  # texts


@dataclass(frozen=True)
class Probe:
    """A text, and what a reward made of it."""

    name: str
    place: str  # where the answer stands
    task: int  # its number
    text: str
    total: float = math.nan  # NaN where no reward applies, or one failed
    error: str = ""


@dataclass(frozen=True)
class Finding:
    """What became of a text on all tasks."""

    attack: str
    paid: float  # share of the tasks on which it is paid
    mean: float | None  # reward; None where there is none
    kind: str  # paid, refused, fails or slow
    place: str
    example: str
    why: str = ""  # of what fails or is slow


@dataclass(frozen=True)
class Audit:
    """What was found."""

    findings: tuple[Finding, ...]
    attacks: tuple[Finding, ...]  # every one, in the place where it is paid most
    forms: tuple[Finding, ...]  # every way to write a right answer, in places where the reward reads answers
    read: tuple[str, ...]  # those places
    unread: tuple[str, ...]
    probes: tuple[Probe, ...]

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read; a rate of what was not tried is None."""
        tpr = fmean(form.paid for form in self.forms) if self.forms else None
        fpr = fmean(attack.paid for attack in self.attacks) if self.attacks else None
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "passed": not self.findings,
            "tpr": tpr,
            "fpr": fpr,
            "j": None if tpr is None or fpr is None else tpr - fpr,
            "read": list(self.read),
            "unread": list(self.unread),
            "attacks": {attack.attack: attack.paid for attack in self.attacks},
            "n": len(self.probes),
        }


def audit(reward: Weighted, tasks: Sequence[Task], *, max_paid: float = 0.02, max_refused: float = 0.1) -> Audit:
    """Attack a reward on these tasks.

    Args:
        reward: whose weighted sum is audited; none that compares the completions of a task.
        tasks: with answers or gold solutions, where there are some.
        max_paid: the share of tasks above which an attack that is paid is a finding.
        max_refused: the share of tasks above which a refused way to write the right answer is one.
    """

    def asked(probes: Iterable[Probe]) -> list[Probe]:
        return _scored(reward, tasks, list(probes))

    parsers = tuple(part for part in reward.parts if role_of(part[0]) not in ("learned", "judge"))
    hard = _hard(replace(reward, parts=parsers), tasks[0]) if parsers else []
    if hard and hard[-1].kind == "slow":  # the next text may take for ever
        return Audit(tuple(hard), (), (), (), (), ())
    right = asked(_in_places(tasks))
    lines = _lines(reward, right, (), len(tasks))
    told = _told("refused", right, lines)
    # a reward without bounds reads everywhere, and costs more
    read = [one.place for one in told if lines is None or one.paid >= 0.5]
    places = [place for place in read if place in PLACES][: None if lines else 1]
    right = [probe for probe in right if probe.place in (*read, GOLD) or not read] + asked(_written(tasks, places))
    wrong = asked(_attacks(tasks, dict.fromkeys([BARE, *places])))
    lines = _lines(reward, right, wrong, len(tasks))
    forms, paid = _told("refused", right, lines), _told("paid", wrong, lines)
    failing = {one.attack: replace(one, kind="fails") for one in (*told, *forms, *paid) if one.why}
    whole = [name for name in AROUND if not any(one.paid >= 0.5 for one in forms if one.attack == name)]
    forms = [one for one in forms if one.attack not in whole]  # the reward reads all that is said, by design
    worst = dict[str, Finding]()
    for one in paid:
        worst[one.attack] = max(worst.get(one.attack, one), one, key=lambda each: (each.paid, each.mean or 0))
    findings = [one for one in worst.values() if one.paid > max_paid]
    findings += [one for one in forms if 1 - one.paid > max_refused]
    findings += [*hard, *failing.values()]
    unread = (*(one.place for one in told if one.place not in read), *(whole if places else ()))
    return Audit(tuple(findings), tuple(worst.values()), tuple(forms), tuple(read), unread, (*right, *wrong))


def _lines(reward: Weighted, right: Sequence[Probe], wrong: Sequence[Probe], tasks: int) -> list[float] | None:
    """From which reward on a text of each task is paid; None where nothing says it without wrong texts."""
    most = 0.0
    for part, weight in reward.parts:
        if weight:
            low, high = bounds_of(part) or (0.0, 1.0)
            most += weight * (high if weight > 0 else low)
    if 0 < most < math.inf:
        return [most / 2] * tasks
    if not wrong:
        return None

    def mean(probes: Sequence[Probe], task: int) -> float:
        found = [probe.total for probe in probes if probe.task == task and not math.isnan(probe.total)]
        return fmean(found) if found else math.nan

    return [(mean(right, task) + mean(wrong, task)) / 2 for task in range(tasks)]


def _told(kind: str, probes: Sequence[Probe], lines: Sequence[float] | None) -> list[Finding]:
    """What became of each text in each place, with an example of what the finding would be about."""
    found: dict[tuple[str, str], list[Probe]] = {}
    for probe in probes:
        found.setdefault((probe.name, probe.place), []).append(probe)
    told: list[Finding] = []
    for (name, place), some in found.items():
        paid = [bool(lines) and probe.total >= lines[probe.task] for probe in some]
        earned = [probe.total for probe in some if not math.isnan(probe.total)]
        shown = next((p for p, is_paid in zip(some, paid, strict=True) if is_paid is (kind == "paid")), some[0])
        why, mean = next((p.error for p in some if p.error), ""), fmean(earned) if earned else None
        told.append(Finding(name, fmean(paid), mean, kind, place, shown.text[:SHOWN], why))
    return told


def _scored(reward: Weighted, tasks: Sequence[Task], probes: Sequence[Probe]) -> list[Probe]:
    """The probes with their totals. Of some that a reward fails on each is scored alone, to know which.

    Raises `NoReplyError` of a judge: what it was not asked is neither paid nor refused.
    """
    if len(probes) > AT_ONCE:
        return [one for i in range(0, len(probes), AT_ONCE) for one in _scored(reward, tasks, probes[i : i + AT_ONCE])]
    try:
        earned = totals(reward, [(tasks[probe.task], probe.text) for probe in probes])
    except NoReplyError:
        raise
    except RewardError as error:
        if len(probes) == 1:
            return [replace(probes[0], error=first_line(error))]
        middle = len(probes) // 2
        return [*_scored(reward, tasks, probes[:middle]), *_scored(reward, tasks, probes[middle:])]
    return [replace(probe, total=total) for probe, total in zip(probes, earned, strict=True)]


def _in_places(tasks: Sequence[Task]) -> list[Probe]:
    """The right answer of each task in each place, and its gold solution."""
    found: list[Probe] = []
    for number, task in enumerate(tasks):
        if answer := answer_of(task):
            found += [Probe("as given", place, number, at.format(answer)) for place, at in PLACES.items()]
        if task.gold:
            found.append(Probe(GOLD, GOLD, number, task.gold))
    return found


def _written(tasks: Sequence[Task], places: Iterable[str]) -> Iterable[Probe]:
    """The right answer in other ways to write it, and with other texts before it."""
    for place in places:
        for number, task in enumerate(tasks):
            for name, text in right_forms(task, place).items():
                yield Probe(name, place, number, PLACES[place].format(text))
            for name, around in AROUND.items() if place != BARE and answer_of(task) else ():
                yield Probe(name, place, number, around.format(PLACES[place].format(answer_of(task))))


def _attacks(tasks: Sequence[Task], places: Iterable[str]) -> Iterable[Probe]:
    known = list(dict.fromkeys(answer for task in tasks if (answer := answer_of(task))))
    for number, task in enumerate(tasks):
        for name, inside, around in attacks(task, known):
            where = [place for place in places if name != TAKEN_BACK or place not in MARKED]
            for place in where if inside else ("",):
                said = around.replace("{}", PLACES[place].format(inside)) if inside else around
                yield Probe(name, place, number, said)


def _hard(reward: Weighted, task: Task) -> list[Finding]:
    """Long texts on which the reward fails, and behind them the first that takes longer than `SLOW_S`, if any does."""

    def asked(said: str) -> tuple[float, str]:
        began, why = time.monotonic(), ""
        try:
            totals(reward, [(task, said)])
        except NoReplyError:
            raise
        except RewardError as error:
            why = first_line(error)
        return time.monotonic() - began, why

    failing: dict[str, Finding] = {}
    for place, at in PLACES.items():
        for name, text in SLOW.items():
            for size in SIZES:
                said = at.format(text(size))
                took, why = asked(said)
                # twice, since the first text that needs a worker process waits until that is there
                if took > SLOW_S and (why or (took := asked(said)[0]) > SLOW_S):
                    why = f"{took:.1f} s for {len(said):,} characters"
                    slow = Finding(f"slow to parse: {name}", 0.0, None, "slow", place, said[:SHOWN], why)
                    return [*failing.values(), slow]
                if why:
                    found = Finding(f"slow to parse: {name}", 0.0, None, "fails", place, said[:SHOWN], why)
                    failing.setdefault(name, found)
    return [*failing.values()]
