"""Advantages and losses of another trainer's rollouts, recomputed in float64.

Shape legend: R rows, G rows of a group, N tokens of several rows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posttrain.objectives.advantages import group_normalised, leave_one_out, mean_centred
from posttrain.objectives.kl import k3
from posttrain.objectives.policy import clipped_surrogate, sequence_surrogate
from posttrain.recipes.verify.dump import Dump, Row
from posttrain.recipes.verify.subject import Item

EXACT = 1e-3
"""Of advantages and losses, relative to their size: they are float32 numbers of float32 numbers."""

Groups = Sequence[Tensor]  # rewards, each [G]


def _each(rule: Callable[[Tensor], Tensor]) -> Callable[[Groups], Tensor]:
    return lambda groups: torch.cat([rule(one) if len(one) > 1 else torch.zeros_like(one) for one in groups])


def _batch_std(groups: Groups, epsilon: float) -> Tensor:
    return _each(mean_centred)(groups) / (torch.cat(list(groups)).std() + epsilon)


class Estimate(NamedTuple):
    """A way from rewards to advantages."""

    words: str
    of: Callable[[Groups, float], Tensor]  # of groups, and what is added to a standard deviation


ADVANTAGES: Mapping[str, Estimate] = {
    "mean": Estimate("reward less the group's mean (Dr. GRPO)", lambda groups, _: _each(mean_centred)(groups)),
    "mean_std": Estimate(
        "group's mean and sample std (GRPO)",
        lambda groups, epsilon: _each(lambda r: group_normalised(r, epsilon=epsilon))(groups),
    ),
    "mean_population_std": Estimate(
        "group's mean and population std",
        lambda groups, epsilon: _each(lambda r: group_normalised(r, epsilon=epsilon, ddof=0))(groups),
    ),
    "leave_one_out": Estimate("mean of the group's others (RLOO)", lambda groups, _: _each(leave_one_out)(groups)),
    "mean_batch_std": Estimate("group's mean and the batch's std", _batch_std),
}
"""Of groups, by the name that a header says; the first that fits is named."""
BATCH, LINE = "batch", "a line in the reward over the whole batch, whose groups are not compared (REINFORCE++)"


def advantages(dump: Dump) -> Item:
    """Advantages, recomputed of rewards in float64; which way from rewards to them fits."""
    rows = dump.rollouts
    if any(row.reward is None or row.advantages_N is None for row in rows):
        return Item.skipped("advantages", "the dump has not both 'reward' and 'advantages'")
    given: list[float] = []
    for row in rows:
        values = (row.advantages_N if row.advantages_N is not None else torch.zeros(0))[row.trained_N].unique()
        if len(values) > 1 and float(values.max() - values.min()) > EXACT * float(values.abs().max()):
            return Item.skipped(
                "advantages", f"they vary within a row ({row.place}), so they are not of its reward alone"
            )
        given.append(float(values.mean()) if len(values) else math.nan)
    mixed = _mixed(rows)
    gaps = _gaps(rows, torch.tensor(given, dtype=torch.float64))
    words = {name: way.words for name, way in ADVANTAGES.items()} | {BATCH: LINE}
    named = [dump.header.advantage] if dump.header.advantage else list(words)
    best = min(named, key=lambda name: gaps[name] if gaps[name] > EXACT else 0.0)
    gap = gaps[best]
    sizes = Counter((row.batch, row.group) for row in rows)
    silent = sum(len({r.reward for r in rows if (r.batch, r.group) == key}) == 1 for key in sizes)
    about = f"{len(sizes)} groups of {min(sizes.values())} to {max(sizes.values())}, {silent} of equal rewards"
    if gap <= EXACT:
        detail = f"they are {words[best]}, within this share of their size; {about}"
    else:
        other = min(gaps, key=lambda name: gaps[name])
        fits = words.get(other, other)
        closest = f"they are {fits}" if gaps[other] <= EXACT else f"none fits, the nearest is {fits}"
        expected = f"expected {words[dump.header.advantage]}; " if dump.header.advantage else ""
        detail = f"{expected}{closest} ({gaps[other]:.1g} off); {about}"
    return Item.within("advantages", gap, EXACT, "; ".join([*mixed, detail]), besides=not mixed)


def _gaps(rows: Sequence[Row], given_R: Float[Tensor, "R"]) -> dict[str, float]:
    """How far each way is from what was given, over the size of that; wrong ones have their words as names."""
    members: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        members[row.batch, row.group].append(number)
    rewards_R = torch.tensor([row.reward or 0.0 for row in rows], dtype=torch.float64)
    found: dict[str, float] = {}
    line_R = given_R.clone()
    for batch in {batch for batch, _ in members}:
        here = [n for (b, _), places in members.items() if b == batch for n in places if not given_R[n].isnan()]
        r, a = rewards_R[here] - rewards_R[here].mean(), given_R[here]
        line_R[here] = a.mean() + r * (a * r).sum().clamp(min=0) / r.square().sum().clamp(min=1e-12)
    for name, way in ADVANTAGES.items():
        for epsilon in (1e-4, 1e-6, 1e-8, 0.0):
            here_R = torch.zeros_like(rewards_R)
            for batch in sorted({batch for batch, _ in members}):
                groups = [places for key, places in members.items() if key[0] == batch]
                order = [place for places in groups for place in places]
                here_R[order] = way.of([rewards_R[places] for places in groups], epsilon)
            for wrong, sign in ((name, 1.0), (f"the negative of {way.words}", -1.0)):
                found[wrong] = min(found.get(wrong, math.inf), _distance(given_R, sign * here_R))
            found.setdefault(moved := f"{way.words}, but of other rows: rewards and rows were shuffled apart", math.inf)
            found[moved] = min(found[moved], _distance(given_R.sort()[0], here_R.sort()[0]))
    return found | {BATCH: _distance(given_R, line_R)}


def _distance(given_R: Float[Tensor, "R"], here_R: Float[Tensor, "R"]) -> float:
    known = ~given_R.isnan()
    if not known.any():
        return 0.0
    size = max(float(given_R[known].abs().max()), float(here_R[known].abs().max()), 1e-12)
    return float((given_R - here_R)[known].abs().max()) / size


def _mixed(rows: Sequence[Row]) -> list[str]:
    """Groups whose rows have different prompts."""
    prompts: dict[tuple[int, str], set[tuple[int, ...]]] = defaultdict(set)
    for row in rows:
        prompts[row.batch, row.group].add(tuple(row.tokens[: row.prompt_length]))
    mixed = [group for (_, group), found in prompts.items() if len(found) > 1]
    return [f"group {mixed[0]} and {len(mixed) - 1} others compare different prompts"] if mixed else []


def losses(dump: Dump) -> Item:
    """The loss of each update and its denominator, recomputed in float64."""
    if not dump.updates or dump.header.surrogate == "other":
        return Item.skipped(
            "loss", "the dump says no 'loss' of an update" if not dump.updates else "not a clipped surrogate"
        )
    problems, fits = list[str](), Counter[str]()
    worst, alike = 0.0, True
    for number, update in sorted(dump.updates.items()):
        rows = [row for row in dump.rows if row.update == number]
        if (values := _token_losses(rows, dump)) is None:
            return Item.skipped(
                "loss", "it needs 'advantages', 'trainer_logprobs' and, with a KL term, 'reference_logprobs'"
            )
        if not sum(map(len, values)):
            problems.append(f"update {number} has a loss and no trained token")
            continue
        size = float(torch.cat(values).abs().mean()) + 1e-12
        found = _reductions(values, rows, dump)
        off = {name: abs(value - update.loss) / size for name, value in found.items()}
        named = dump.header.aggregation or min(_DENOMINATORS, key=lambda name: off.get(name, math.inf))
        worst = max(worst, off.get(named, math.inf))
        alike &= max(abs(value) for name, value in found.items() if name in _DENOMINATORS) <= EXACT * size
        fits[min(off, key=lambda name: off[name])] += 1
        if not off.get(named, math.inf) <= EXACT:
            near = min(off, key=lambda name: off[name])
            is_it = f"it is that of {near}" if off[near] <= EXACT else "no reduction that is known gives it"
            what = f"{named} gives {found.get(named, math.nan):.6g}"
            problems.append(f"update {number}: the loss was {update.loss:.6g}, {what}; {is_it}")
        if update.denominator is not None and named in _DENOMINATORS:
            counts = {name: count(rows, dump) for name, count in {**_DENOMINATORS, **_WRONG}.items()}
            if abs(update.denominator - counts[named]) > EXACT * counts[named]:
                is_it = [name for name, value in counts.items() if value == update.denominator]
                problems.append(
                    f"update {number}: the denominator was {update.denominator:g}, {named} has {counts[named]:g}"
                    + f"; it is that of {is_it[0]}" * bool(is_it)
                )
    detail = f"of {len(dump.updates)} updates, in float64, as {fits.most_common(1)[0][0] if fits else 'nothing'}"
    if alike and not problems:
        detail += (
            "; all losses are 0, as they are where advantages cancel, so that they tell no denominator from another"
        )
    return Item.within("loss", worst, EXACT, "; ".join([*problems[:3], detail]), besides=not problems)


def _token_losses(rows: Sequence[Row], dump: Dump) -> list[Tensor] | None:
    """The loss of each trained token, by row."""
    found: list[Tensor] = []
    header = dump.header
    for row in rows:
        if row.advantages_N is None or row.trainer_N is None:
            return None
        at = row.trained_N
        trainer_N, advantages_N = row.trainer_N[at], row.advantages_N[at]
        old_N = trainer_N if row.old_N is None else row.old_N[at]
        clip = {"clip_low": header.clip_low, "clip_high": header.clip_high}
        if header.surrogate == "sequence":
            row_N = torch.zeros(len(trainer_N), dtype=torch.long)
            loss_N = sequence_surrogate(trainer_N, old_N, advantages_N, row_N, by_length=True, **clip).loss
        else:
            loss_N = clipped_surrogate(trainer_N, old_N, advantages_N, **clip).loss
        if header.kl_coefficient:
            if row.reference_N is None:
                return None
            loss_N = loss_N + header.kl_coefficient * k3(trainer_N, row.reference_N[at])
        found.append(loss_N)
    return found


def _tokens(rows: Sequence[Row], dump: Dump) -> float:
    return float(sum(int(row.trained_N.sum()) for row in rows))


_DENOMINATORS: Mapping[str, Callable[[Sequence[Row], Dump], float]] = {
    "token_mean": _tokens,
    "sequence_mean": lambda rows, _: float(len(rows)),
    "sequence_sum": lambda rows, _: float(len(rows)),
    "constant": lambda rows, dump: float(len(rows) * (dump.header.max_new_tokens or 0)),
    "micro_batch_token_mean": _tokens,
}
_WRONG: Mapping[str, Callable[[Sequence[Row], Dump], float]] = {
    "tokens with padding": lambda rows, _: float(len(rows) * max(len(row.trained_N) for row in rows)),
    "tokens with those of prompts": lambda rows, _: float(sum(len(row.tokens) for row in rows)),
    "no denominator at all": lambda rows, _: 1.0,
}


def _reductions(values: Sequence[Tensor], rows: Sequence[Row], dump: Dump) -> dict[str, float]:
    """The loss of an update by each reduction: what a header may say, then what is wrong."""
    total = float(torch.cat(list(values)).sum())
    parts: dict[int, list[Tensor]] = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        parts[row.micro_batch].append(value)
    by_part = [_mean(torch.cat(part)) for part in parts.values()]
    counts = {name: count(rows, dump) for name, count in {**_DENOMINATORS, **_WRONG}.items()}
    return {name: total / count for name, count in counts.items() if count} | {
        "sequence_mean": fmean(map(_mean, values)),
        "micro_batch_token_mean": fmean(by_part),
    }


def _mean(values_N: Float[Tensor, "N"]) -> float:
    return float(values_N.mean()) if len(values_N) else 0.0
