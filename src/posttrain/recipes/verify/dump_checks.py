"""What is checked of another trainer's rollouts, each in words. Beside each stands how far it may be off, and why.

Shape legend: R rows, N tokens of several rows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from posttrain.recipes.verify.dump import Dump, Row
from posttrain.recipes.verify.subject import Item

RATIO = 0.01
"""Mean distance of the ratio from 1 at the first update. The same forward pass twice is equal, or 1e-3 apart where
bfloat16 met other batches; dropout, other weights or another temperature make 0.05 and more."""

GAP = 0.01
"""Nats: the mean of sampler's less trainer's logprob estimates KL(sampler || trainer), which rounding of bfloat16 (0.02
a token) makes 2e-4. Weights that are some updates old make 0.01."""

SLOPE = 0.03
"""How far the slope of the sampler's logprobs on the trainer's may be from 1. A temperature of 0.9 makes 1.1."""

CUT = 0.25
"""Completions without a stop token. Above a quarter, what is learned is to be short."""

DRIFT = 0.2
"""Log of a sequence's weight, trainer's over sampler's, at the longest completion: as far as PPO's clip lets it go."""

REPEATED = 20.0
"""Nats (or tokens, without logprobs) of sampled rows that were there before: by chance they are with e^-20."""


def said(found: Iterable[tuple[str, Row]], rows: int) -> list[str]:
    """Each kind of violation once, with its number of rows and the first of them."""
    places: dict[str, list[str]] = defaultdict(list)
    for what, row in found:
        places[what].append(row.place)
    return [f"{what} in {len(at)} of {rows} rows, such as {at[0]}" for what, at in places.items()]


def numbers(dump: Dump) -> Item:
    """Numbers that cannot be: a logprob above 0, or one or an advantage of a trained token that is not finite."""
    found: list[tuple[str, Row]] = []
    for row in dump.rows:
        for name in ("sampler", "old", "trainer", "reference", "advantages"):
            values = getattr(row, f"{name}_N")
            if values is None:
                continue
            if not values[row.trained_N & (row.sampled_N if name == "sampler" else True)].isfinite().all():
                found.append((f"{name} of a trained token is not finite", row))
            if name != "advantages" and (values > 1e-3).any():
                found.append((f"a logprob of {name} is above 0", row))
    return Item.unless("numbers", said(found, len(dump.rows)), f"finite in {len(dump.rows)} rows, no logprob above 0")


def loss_mask(dump: Dump) -> Item:
    """Whether the mask covers what was sampled, all of it and nothing else; rows without any are left out whole."""
    found = [(what, row) for row in dump.rows for what in _mask_faults(row, dump.header.stop_tokens)]
    out = sum(not row.mask_T.any() for row in dump.rows)
    tokens = sum(int(row.trained_N.sum()) for row in dump.rows)
    detail = f"{tokens} tokens are trained, the sampled ones of {len(dump.rows) - out} rows"
    return Item.unless(
        "loss mask", said(found, len(dump.rows)), detail + f"; {out} rows are left out whole" * (out > 0)
    )


def _mask_faults(row: Row, stop: Sequence[int]) -> list[str]:
    trained, sampled = row.trained_N, row.sampled_N
    faults = ["tokens of the prompt are in the loss"] * bool(row.mask_T[: row.prompt_length].any())
    if not row.mask_T.any() or trained.equal(sampled):
        return faults
    if len(sampled) > 1 and any(trained.equal(sampled.roll(by)) for by in (1, -1)) and not sampled.all():
        return [*faults, "the mask is shifted by one token"]
    last = int(sampled.nonzero().max()) if sampled.any() else -1
    if (trained[last + 1 :]).any():
        faults.append("tokens after the last sampled one, such as padding, are in the loss")
    if (trained & ~sampled)[: last + 1].any():
        faults.append("tokens that the policy did not sample, such as a tool's, are in the loss")
    lost = (sampled & ~trained).nonzero().flatten().tolist()
    if lost == [last] and (row.tokens[row.prompt_length + last] in stop or not stop):
        faults.append("the stop token is not in the loss, so that stopping is not learned,")
    elif lost:
        faults.append("sampled tokens are not in the loss")
    return faults


def truncation(dump: Dump) -> Item:
    """The share of completions without an end, whether they are trained on, and what they earn."""
    rows, stop, most = dump.rollouts, set(dump.header.stop_tokens), dump.header.max_new_tokens
    if not stop and any(row.truncated is None for row in rows):
        return Item.skipped("truncated", "the dump says neither 'truncated' of rows nor 'stop_tokens' in its header")
    found: list[tuple[str, Row]] = []
    cut: set[Row] = set()
    for row in rows:
        sampled = [t for t, flag in zip(row.tokens[row.prompt_length :], row.sampled_N.tolist(), strict=True) if flag]
        ends = bool(sampled) and sampled[-1] in stop
        if stop and row.truncated is not None and row.truncated == ends:
            found.append(("'truncated' contradicts the last token", row))
        if most and not ends and len(row.sampled_N) < most and not row.truncated:
            found.append((f"no stop token, and fewer tokens than {most}", row))
        if not ends if stop else row.truncated:
            cut.add(row)
    share = len(cut) / max(1, len(rows))
    trained = sum(bool(row.mask_T.any()) for row in cut)
    detail = f"share of {len(rows)} completions that were cut off; {trained} of {len(cut)} are trained on"
    if all(row.reward is not None for row in rows) and 0 < len(cut) < len(rows):
        means = [fmean(row.reward or 0.0 for row in rows if (row in cut) == one) for one in (True, False)]
        detail += f"; their mean reward is {means[0]:.3g}, of the others {means[1]:.3g}"
    problems = said(found, len(rows))
    return Item.within("truncated", share, CUT, "; ".join([detail, *problems]), besides=not problems)


def sampling(dump: Dump) -> Item:
    """Whether the trainer's distribution is the one that was sampled: the sampler's logprobs against the trainer's."""
    problems, header = list[str](), dump.header
    filters = {"top_p": (header.top_p, 1.0), "top_k": (header.top_k, 0), "min_p": (header.min_p, 0.0)}
    filters |= {"repetition_penalty": (header.repetition_penalty, 1.0)}
    used = [f"{name} {value:g}" for name, (value, off) in filters.items() if value != off]
    if used:
        problems.append(f"the sampler filters ({', '.join(used)}), and the loss is of the whole distribution")
    if header.loss_temperature and header.loss_temperature != header.temperature:
        problems.append(f"temperature {header.temperature:g} is sampled, {header.loss_temperature:g} is in the loss")
    known = _of_sampler(dump)
    if known is None:
        if problems:
            return Item.unless("sampling", problems, "")
        return Item.skipped("sampling", "the dump has no 'sampler_logprobs' with 'old_logprobs' or 'trainer_logprobs'")
    sampler_N, trainer_N, _ = known
    gap_N = sampler_N - trainer_N
    gap = gap_N.mean().item()
    slope, error = _slope(trainer_N, sampler_N)
    detail = (
        f"sampler's less trainer's logprob over {len(gap_N)} tokens: mean {gap:+.4f} nats (an estimate of the KL, "
        f"which is at least 0), mean distance {gap_N.abs().mean():.4f}, largest {gap_N.abs().max():.3f}"
    )
    if gap > GAP / 4 and (gap_N < -1e-3).double().mean() < 0.02:
        problems.append(
            "no token is less likely to the sampler: top-p, top-k or min-p, whose logprobs are renormalised"
        )
    elif abs(slope - 1) > max(SLOPE, 5 * error):
        problems.append(f"the sampler's logprobs are {_as_if(slope)}")
    elif abs(gap) > GAP:
        problems.append("they are of other weights or another number format")
    return Item.within("sampling", abs(gap), GAP, "; ".join([*problems, detail]), besides=not problems)


def length_drift(dump: Dump) -> Item:
    """Whether the weight of a sequence, the product of its tokens' ratios, drifts from 1 as sequences grow longer."""
    known = _of_sampler(dump)
    if known is None:
        return Item.skipped("length", "the dump has no 'sampler_logprobs' with 'old_logprobs' or 'trainer_logprobs'")
    sampler_N, trainer_N, row_N = known
    length_R = row_N.bincount().double()
    weight_R = torch.zeros_like(length_R).index_add(0, row_N, trainer_N - sampler_N)[length_R > 0]
    length_R = length_R[length_R > 0]
    by_token = float((weight_R * length_R).sum() / length_R.square().sum())
    rest = (weight_R - by_token * length_R).square().sum() / max(1, len(weight_R) - 1)
    error = math.sqrt(float(rest / length_R.square().sum()))
    longest = float(length_R.max())
    drift = by_token * longest
    ratio_R = weight_R.exp()
    effective = float(ratio_R.sum().square() / ratio_R.square().sum())
    detail = (
        f"log weight of a sequence, trainer's over sampler's, at the longest of {longest:.0f} tokens: {by_token:+.2g} "
        f"nats a token (± {error:.1g}); weights from {ratio_R.min():.3g} to {ratio_R.max():.3g}, worth "
        f"{effective:.1f} of {len(ratio_R)} sequences"
    )
    off = abs(drift) > DRIFT and abs(by_token) > 2 * error
    words = "weights of sequences drift with their length: long completions count for "
    words += "less; " if drift < 0 else "more; "
    return Item("length", not off, abs(drift), DRIFT, words * off + detail)


def first_update(dump: Dump) -> Item:
    """The ratio before anything was learned from a batch."""
    begin: dict[int, int] = {}
    for row in dump.rows:
        begin[row.batch] = min(row.update, begin.get(row.batch, row.update))
    rows = [row for row in dump.rows if row.update == begin[row.batch]]
    old_N, trainer_N = _flat(rows, "old"), _flat(rows, "trainer")
    if old_N is None or trainer_N is None:
        return Item.skipped("first update", "the dump has not both 'old_logprobs' and 'trainer_logprobs'")
    off_N = (trainer_N - old_N).exp() - 1
    slope, error = _slope(old_N, trainer_N)
    measured = off_N.abs().mean().item() if len(off_N) else 0.0
    largest = off_N.abs().max().item() if len(off_N) else 0.0
    detail = f"mean distance of the ratio from 1 over {len(off_N)} tokens, largest {largest:.3g}"
    if measured > RATIO:
        other = abs(slope - 1) > max(SLOPE, 5 * error)
        why = f"the new logprobs are {_as_if(slope)}" if other else "dropout, or other weights, in one of both"
        detail = f"the ratio is not 1: {why}; {detail}"
    return Item.within("first update", measured, RATIO, detail)


def repeats(dump: Dump) -> Item:
    """Batches, or completions, that were there before."""
    rows, problems = dump.rollouts, list[str]()
    seen: dict[tuple[int, ...], int] = {}
    for batch in sorted({row.batch for row in rows}):
        here = [row for row in rows if row.batch == batch]
        again = [row for row in here if tuple(row.tokens) in seen]
        if 2 * len(again) >= len(here) and sum(map(_surprise, again)) >= REPEATED:
            before = seen[tuple(again[0].tokens)]
            problems.append(f"batch {batch} has {len(again)} of its {len(here)} completions from batch {before}")
        times = Counter(tuple(row.tokens) for row in here if row.sampler_N is not None or row.old_N is not None)
        if twice := [row for row in here if times[tuple(row.tokens)] > 1 and _surprise(row) >= REPEATED]:
            problems.append(f"{len(twice)} completions of batch {batch} are there twice, such as {twice[0].place}")
        seen |= {tuple(row.tokens): batch for row in here}
    return Item.unless("repeats", problems, f"{len(rows)} completions, none of a batch before")


def _surprise(row: Row) -> float:
    """Nats that a completion was worth to who sampled it; its tokens where nobody said."""
    known_N = row.sampler_N if row.sampler_N is not None else row.old_N if row.old_N is not None else row.trainer_N
    return float(row.sampled_N.sum()) if known_N is None else -float(known_N[row.sampled_N].nan_to_num().sum())


def _flat(rows: Sequence[Row], name: str) -> Float[Tensor, "N"] | None:
    """A column of all trained tokens; None where a row lacks it."""
    values = [getattr(row, f"{name}_N") for row in rows]
    if any(v is None for v in values):
        return None
    return torch.cat([v[r.trained_N] for v, r in zip(values, rows, strict=True)])


def _of_sampler(dump: Dump) -> tuple[Tensor, Tensor, Tensor] | None:
    """Sampler's and trainer's logprobs of sampled tokens, by the same weights, and the number of each one's row."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    first = {batch: min(r.update for r in dump.rows if r.batch == batch) for batch in {r.batch for r in dump.rows}}
    for number, row in enumerate(dump.rollouts):
        trainer_N = row.trainer_N if row.old_N is None and row.update == first[row.batch] else row.old_N
        if row.sampler_N is None or trainer_N is None:
            continue
        at = row.trained_N & row.sampler_N.isfinite() & trainer_N.isfinite()
        found.append((row.sampler_N[at], trainer_N[at], torch.full((int(at.sum()),), number)))
    if not sum(len(one[0]) for one in found):
        return None
    sampler_N, trainer_N, row_N = (torch.cat(column) for column in zip(*found, strict=True))
    return sampler_N, trainer_N, row_N


def _as_if(slope: float) -> str:
    """What logprobs are whose slope on others is this."""
    if slope < 0.1:
        return "unrelated to the others, as of a column that was not filled"
    return f"as if at a temperature of {1 / slope:.2f}"


def _slope(x_N: Float[Tensor, "N"], y_N: Float[Tensor, "N"]) -> tuple[float, float]:
    """Of y on x by least squares, and its standard error; 1 where x hardly differs."""
    if len(x_N) < 3 or float(spread := (x_N - x_N.mean()).square().sum()) < 1e-6:
        return 1.0, math.inf
    slope = float(((x_N - x_N.mean()) * (y_N - y_N.mean())).sum() / spread)
    rest = (y_N - y_N.mean() - slope * (x_N - x_N.mean())).square().sum() / (len(x_N) - 2)
    return slope, math.sqrt(float(rest / spread))
