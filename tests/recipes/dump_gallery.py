"""Dumps of rollouts with a planted fault each, and a right one: what `posttrain verify --import` is measured by.

    python -m tests.recipes.dump_gallery FOLDER

Everything is made in plain floats, by a policy that is a table of probabilities: nothing here is posttrain's.
"""

import json
import math
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

VOCABULARY, STOP, LONGEST = 12, 0, 24
GROUPS, SIZE = 8, 6
Line = dict[str, Any]


@cache
def distribution(place: int, prompt: int, stop: float) -> list[float]:
    """Probabilities of the next token: peaked differently at each place."""
    drawn = random.Random(f"{prompt} {place}")
    logits = [drawn.gauss(0, 1.5) for _ in range(VOCABULARY)]
    logits[STOP] = stop
    total = sum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


def filtered(chances: list[float], *, temperature: float = 1.0, top_p: float = 1.0) -> list[float]:
    """The distribution that a sampler with these settings draws from."""
    warm = [chance ** (1 / temperature) for chance in chances]
    order = sorted(range(len(warm)), key=lambda token: -warm[token])
    kept, mass = set[int](), 0.0
    for token in order:
        if mass < top_p * sum(warm):
            kept.add(token)
            mass += warm[token]
    return [value / mass if token in kept else 0.0 for token, value in enumerate(warm)]


def completion(prompt: int, drawn: random.Random, longest: int = LONGEST, stop: float = 1.5, **settings: float) -> Line:
    """One row: sampled with these settings, scored by the plain distribution."""
    begin = [VOCABULARY + prompt, VOCABULARY + prompt + 1, VOCABULARY + prompt + 2]
    said: list[int] = []
    sampler: list[float] = []
    trainer: list[float] = []
    while len(said) < longest and (not said or said[-1] != STOP):
        plain = distribution(len(said), prompt, stop)
        asked = filtered(plain, **settings)
        token = drawn.choices(range(VOCABULARY), asked)[0]
        said.append(token)
        sampler.append(min(0.0, math.log(asked[token]) + drawn.gauss(0, 1e-4)))
        trainer.append(math.log(plain[token]))
    return {
        "tokens": begin + said,
        "prompt_length": len(begin),
        "mask": [1] * len(said),
        "sampler_logprobs": sampler,
        "old_logprobs": trainer,
        "trainer_logprobs": list(trainer),
        "reward": float(sum(token % 3 == 0 for token in said)) + drawn.random(),
        "group": f"g{prompt}",
    }


def advantages_of(rewards: list[float]) -> list[float]:
    """GRPO's: the group's mean and sample standard deviation."""
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-4) for r in rewards]


def trained(row: Line) -> list[int]:
    """The mask after the prompt."""
    return row["mask"][-(len(row["tokens"]) - row["prompt_length"]) :]


def loss_of(rows: list[Line]) -> tuple[float, int]:
    """The token mean of the clipped surrogate, and the number of tokens."""
    total, count = 0.0, 0
    for row in rows:
        for new, old, flag in zip(row["trainer_logprobs"], row["old_logprobs"], trained(row), strict=True):
            ratio = math.exp(new - old)
            total -= flag * min(ratio * row["advantages"], max(0.8, min(1.2, ratio)) * row["advantages"])
            count += flag
    return total / count, count


def dump(batches: int = 2, **settings: Any) -> list[Line]:
    """Header, updates and rows without a fault, unless the settings are one."""
    return json.loads(_dump(batches, **settings))


@cache
def _dump(batches: int, **settings: Any) -> str:
    drawn = random.Random(0)
    rows: list[Line] = []
    updates: list[Line] = []
    for batch in range(batches):
        here: list[Line] = []
        for prompt in range(batch * GROUPS, (batch + 1) * GROUPS):
            group = [completion(prompt, drawn, **settings) for _ in range(SIZE)]
            for row, advantage in zip(group, advantages_of([row["reward"] for row in group]), strict=True):
                here.append({**row, "advantages": advantage, "batch": batch, "update": batch, "micro_batch": 0})
        for number, row in enumerate(here):
            row["micro_batch"] = number // (2 * SIZE)
        loss, count = loss_of(here)
        updates.append({"update": batch, "loss": loss, "denominator": count})
        rows += here
    header: Line = {"format": "posttrain-rollouts-1", "source": "the gallery", "aggregation": "token_mean"}
    header |= {"stop_tokens": [STOP], "max_new_tokens": settings.get("longest", LONGEST)}
    return json.dumps([header, *updates, *rows])


def parts(lines: list[Line]) -> tuple[Line, list[Line], list[Line]]:
    """Header, updates and rows."""
    return lines[0], [one for one in lines[1:] if "loss" in one], [one for one in lines[1:] if "tokens" in one]


def recount(lines: list[Line]) -> list[Line]:
    """With the losses that follow from what the rows say now."""
    _, updates, rows = parts(lines)
    for update in updates:
        update["loss"], update["denominator"] = loss_of([r for r in rows if r["update"] == update["update"]])
    return lines


def each(change: Callable[[Line], None]) -> Callable[[], list[Line]]:
    """A dump whose rows were changed, with losses that follow."""

    def make() -> list[Line]:
        lines = dump()
        for row in parts(lines)[2]:
            change(row)
        return recount(lines)

    return make


def prompt_in_loss(row: Line) -> None:
    row["mask"] = [1] * len(row["tokens"])


def stop_left_out(row: Line) -> None:
    if row["tokens"][-1] == STOP and len(row["mask"]) > 1:
        row["mask"][-1] = 0


def shifted(row: Line) -> None:
    row["sampled"] = [1] * len(row["mask"])
    append(row, 1)
    row["mask"] = [0, *row["mask"][:-1]]


def append(row: Line, count: int) -> None:
    """Padding that the policy did not sample."""
    for name in ("sampler_logprobs", "old_logprobs", "trainer_logprobs"):
        row[name] = [*row[name], *[-1.0 if name != "sampler_logprobs" else None] * count]
    row["tokens"] = [*row["tokens"], *[STOP] * count]
    row["mask"] = [*row["mask"], *[0] * count]
    if "sampled" in row:
        row["sampled"] = [*row["sampled"], *[0] * count]


def padding_in_loss(row: Line) -> None:
    append(row, 3)
    row["mask"] = [1] * len(row["mask"])


def tool_in_loss(row: Line) -> None:
    for place in range(1, min(3, len(row["sampler_logprobs"]) - 1)):
        row["sampler_logprobs"][place] = None


def dropout(row: Line) -> None:
    drawn = random.Random(str(row["tokens"]))
    row["trainer_logprobs"] = [min(0.0, value + drawn.gauss(0, 0.1)) for value in row["trainer_logprobs"]]


def drifting() -> list[Line]:
    """Two thousandths of a nat a token, that hundreds of tokens add up."""
    lines = dump(batches=1, longest=400, stop=-1.0)
    for row in parts(lines)[2]:
        row["sampler_logprobs"] = [min(0.0, value + 0.002) for value in row["sampler_logprobs"]]
    return lines


def cut_off(row: Line) -> None:
    if row["tokens"][-1] == STOP:
        row["tokens"][-1] = 1


def broken() -> list[Line]:
    """A logprob of a trained token that is not finite."""
    lines = dump()
    parts(lines)[2][3]["trainer_logprobs"][0] = math.nan
    return lines


def by_group(change: Callable[[list[float]], list[float]]) -> Callable[[], list[Line]]:
    """A dump whose advantages are computed otherwise from each group's rewards."""

    def make() -> list[Line]:
        lines = dump()
        rows = parts(lines)[2]
        for begin in range(0, len(rows), SIZE):
            group = rows[begin : begin + SIZE]
            for row, value in zip(group, change([one["reward"] for one in group]), strict=True):
                row["advantages"] = value
        return recount(lines)

    return make


def of_batch() -> list[Line]:
    """Rewards less the mean of the whole batch."""
    lines = with_header(advantage="mean_std")()
    for batch in range(2):
        rows = [row for row in parts(lines)[2] if row["batch"] == batch]
        mean = sum(row["reward"] for row in rows) / len(rows)
        for row in rows:
            row["advantages"] = row["reward"] - mean
    return recount(lines)


def shuffled() -> list[Line]:
    """Rewards and advantages of a batch at the wrong rows."""
    lines = dump(batches=1)
    rows = parts(lines)[2]
    values = [row["advantages"] for row in rows]
    random.Random(1).shuffle(values)
    for row, value in zip(rows, values, strict=True):
        row["advantages"] = value
    return recount(lines)


def wrong_groups() -> list[Line]:
    """Rows are interleaved, and groups are taken of neighbours."""
    lines = dump(batches=1)
    rows = parts(lines)[2]
    order = [rows[place * SIZE + number] for number in range(SIZE) for place in range(GROUPS)]
    for begin in range(0, len(order), SIZE):
        group = order[begin : begin + SIZE]
        for row, value in zip(group, advantages_of([one["reward"] for one in group]), strict=True):
            row["advantages"], row["group"] = value, f"n{begin}"
    return recount(lines)


def by_micro_batch() -> list[Line]:
    """Each micro-batch is divided by its own tokens."""
    lines = dump()
    _, updates, rows = parts(lines)
    for update in updates:
        here = [row for row in rows if row["update"] == update["update"]]
        found = [loss_of([row for row in here if row["micro_batch"] == part]) for part in range(4)]
        update["loss"] = sum(loss for loss, _ in found) / 4
    return lines


def padded_denominator() -> list[Line]:
    """The loss is divided by what a padded batch has."""
    lines = dump()
    _, updates, rows = parts(lines)
    for update in updates:
        lengths = [len(row["mask"]) for row in rows if row["update"] == update["update"]]
        update["loss"] *= update["denominator"] / (len(lengths) * max(lengths))
        update["denominator"] = len(lengths) * max(lengths)
    return lines


def twice() -> list[Line]:
    """The first batch is fed once more as the second."""
    lines = dump()
    header, updates, rows = parts(lines)
    first = [row for row in rows if row["batch"] == 0]
    again = [{**row, "batch": 1, "update": 1} for row in first]
    return recount([header, *updates, *first, *again])


def with_header(**said: Any) -> Callable[[], list[Line]]:
    """A right dump whose header says otherwise."""
    return lambda: [{**dump()[0], **said}, *dump()[1:]]


def two_epochs(by_sequence: bool) -> list[Line]:
    """A second pass over each batch, with ratios that are clipped and a KL term; means of sequences."""
    header, _, rows = parts(dump())
    drawn = random.Random(2)
    updates: list[Line] = []
    again: list[Line] = []
    for row in rows:
        row["reference_logprobs"] = [value - abs(drawn.gauss(0, 0.2)) for value in row["old_logprobs"]]
        moved = [min(0.0, value + drawn.gauss(0, 0.3)) for value in row["old_logprobs"]]
        again.append({**row, "trainer_logprobs": moved, "epoch": 1, "update": row["update"] + 2})
    for number in range(4):
        here = [row for row in rows + again if row["update"] == number]
        found: list[float] = []
        for row in here:
            new, old, reference = (row[f"{name}_logprobs"] for name in ("trainer", "old", "reference"))
            ratios = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
            if by_sequence:
                ratios = [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
            value = row["advantages"]
            of_each = [-min(ratio * value, max(0.9, min(1.3, ratio)) * value) for ratio in ratios]
            kl = [math.exp(b - a) - 1 - (b - a) for a, b in zip(new, reference, strict=True)]
            found.append(sum(one + 0.2 * far for one, far in zip(of_each, kl, strict=True)) / len(kl))
        updates.append({"update": number, "loss": sum(found) / len(found), "denominator": len(found)})
    header |= {"aggregation": "sequence_mean", "clip_low": 0.1, "clip_high": 0.3, "kl_coefficient": 0.2}
    return [{**header, "surrogate": "sequence" if by_sequence else "token"}, *updates, *rows, *again]


class Fault(NamedTuple):
    """A dump with a fault, the item that must fail, and words that it says."""

    make: Callable[[], list[Line]]
    item: str
    words: str


def population(rewards: list[float]) -> list[float]:
    """Over the standard deviation of the group as it is."""
    return [math.sqrt(SIZE / (SIZE - 1)) * one for one in advantages_of(rewards)]


RIGHT: dict[str, tuple[Callable[[], list[Line]], str]] = {
    "right": (dump, "sample std (GRPO)"),
    "right-rloo": (by_group(lambda r: [SIZE / (SIZE - 1) * (one - sum(r) / SIZE) for one in r]), "RLOO"),
    "right-dr-grpo": (by_group(lambda r: [one - sum(r) / SIZE for one in r]), "Dr. GRPO"),
    "right-population-std": (by_group(population), "population std"),
    "right-rewards": (by_group(lambda r: r), "groups are not compared"),
    "right-two-epochs": (lambda: two_epochs(by_sequence=False), "sample std (GRPO)"),
    "right-gspo": (lambda: two_epochs(by_sequence=True), "sample std (GRPO)"),
}
"""What has no fault, and how its advantages are named."""
FAULTS: dict[str, Fault] = {
    "prompt-in-loss": Fault(each(prompt_in_loss), "loss mask", "tokens of the prompt are in the loss"),
    "stop-left-out": Fault(each(stop_left_out), "loss mask", "the stop token is not in the loss"),
    "mask-shifted": Fault(each(shifted), "loss mask", "shifted by one token"),
    "padding-in-loss": Fault(each(padding_in_loss), "loss mask", "such as padding, are in the loss"),
    "tool-in-loss": Fault(each(tool_in_loss), "loss mask", "such as a tool's, are in the loss"),
    "dropout": Fault(each(dropout), "first update", "dropout, or other weights"),
    "top-p": Fault(lambda: dump(top_p=0.8), "sampling", "top-p, top-k or min-p"),
    "top-p-in-header": Fault(with_header(top_p=0.9), "sampling", "the sampler filters (top_p 0.9)"),
    "temperature": Fault(lambda: dump(temperature=0.8), "sampling", "as if at a temperature of 0."),
    "temperature-in-header": Fault(with_header(temperature=0.7, loss_temperature=1.0), "sampling", "0.7 is sampled"),
    "length-drift": Fault(drifting, "length", "drift with their length"),
    "negative-advantages": Fault(
        by_group(lambda r: [-one for one in advantages_of(r)]), "advantages", "the negative of group's mean"
    ),
    "batch-mean": Fault(of_batch, "advantages", "groups are not compared"),
    "shuffled-rewards": Fault(shuffled, "advantages", "of other rows"),
    "wrong-groups": Fault(wrong_groups, "advantages", "compare different prompts"),
    "not-what-the-header-says": Fault(with_header(advantage="mean"), "advantages", "group's mean and sample std"),
    "micro-batch-means": Fault(by_micro_batch, "loss", "micro_batch_token_mean"),
    "padded-denominator": Fault(padded_denominator, "loss", "tokens with padding"),
    "truncated": Fault(each(cut_off), "truncated", "cut off"),
    "twice": Fault(twice, "repeats", "from batch 0"),
    "not-finite": Fault(broken, "numbers", "not finite"),
}


def write(path: Path, lines: list[Line]) -> Path:
    """As jsonl."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def main() -> None:
    """Write all of them."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (make, *_) in {**RIGHT, **FAULTS}.items():
        print(write(folder / f"{name}.jsonl", make()))


if __name__ == "__main__":
    main()
