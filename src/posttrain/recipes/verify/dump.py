"""Rollouts of another trainer, as `posttrain verify --import` reads them.

A dump is a header, a line for each update, and rows. As jsonl each is an object on a line, the header first. As
safetensors the header is the JSON of the metadata key `posttrain`, with the lines of updates as its list `updates`; the
rows are tensors one after another: `lengths` and `prompt_lengths` say where each ends. docs/verify-dumps.md describes
both. Several files in a folder are one dump, each file a batch of its own unless rows say which.

Shape legend: R rows, T tokens of a row, N of them after its prompt.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from posttrain.data import Record, read_rows
from posttrain.errors import DataError, UserError, first_line, foreign, unknown
from posttrain.options.option import Form, Range

FORMAT = "posttrain-rollouts-1"
Aggregation = Literal["", "token_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_token_mean"]
Advantage = Literal["", "mean", "mean_std", "mean_population_std", "leave_one_out", "mean_batch_std", "batch"]


@dataclass(frozen=True)
class Header(Form):
    """What a trainer says of its settings."""

    format: Literal["posttrain-rollouts-1"] = FORMAT
    source: str = ""  # who wrote it
    aggregation: Aggregation = ""  # how token losses become the loss of an update
    advantage: Advantage = ""  # how rewards become advantages
    surrogate: Literal["token", "sequence", "other"] = "token"  # whose ratio is clipped; "other" is not recomputed
    clip_low: Annotated[float, Range(0)] = 0.2
    clip_high: Annotated[float, Range(0)] = 0.2
    kl_coefficient: Annotated[float, Range(0)] = 0.0  # of the k3 estimate, a term of each token's loss
    temperature: Annotated[float, Range(0)] = 1.0  # of the sampler
    loss_temperature: Annotated[float | None, Range(0, out="low")] = None  # what the trainer divides logits by
    top_p: Annotated[float, Range(0, 1)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    repetition_penalty: Annotated[float, Range(0, out="low")] = 1.0
    stop_tokens: tuple[int, ...] = ()
    max_new_tokens: Annotated[int | None, Range(1)] = None


@dataclass(frozen=True, slots=True)
class Update:
    """What the trainer computed in one update."""

    loss: float
    denominator: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One completion, as it was sampled, scored and trained on; None for a column that the dump lacks.

    The other tensors have the tokens after the prompt. A logprob that is not there is NaN.
    """

    place: str
    tokens: Sequence[int]
    prompt_length: int
    mask_T: Bool[Tensor, "T"]  # what the loss covers
    sampled_N: Bool[Tensor, "N"]  # what the policy sampled
    sampler_N: Float[Tensor, "N"] | None  # as it was sampled
    old_N: Float[Tensor, "N"] | None  # the ratio's denominator
    trainer_N: Float[Tensor, "N"] | None  # the ratio's numerator
    reference_N: Float[Tensor, "N"] | None
    advantages_N: Float[Tensor, "N"] | None
    reward: float | None
    group: str
    batch: int  # of rollouts
    update: int  # of the optimizer
    micro_batch: int
    epoch: int  # which pass over the batch
    truncated: bool | None

    @property
    def trained_N(self) -> Bool[Tensor, "N"]:
        """What the loss covers, after the prompt."""
        return self.mask_T[self.prompt_length :]


@dataclass(frozen=True)
class Dump:
    """All that a dump says."""

    header: Header
    updates: Mapping[int, Update]
    rows: Sequence[Row]

    @property
    def rollouts(self) -> list[Row]:
        """Each completion once, whatever the number of passes over its batch."""
        return [row for row in self.rows if row.epoch == 0]


_COLUMNS = """
tokens prompt_length mask sampled sampler_logprobs old_logprobs trainer_logprobs reference_logprobs advantages
reward group batch update micro_batch epoch truncated
"""
COLUMNS = _COLUMNS.split()
_NEEDED = COLUMNS[:3]


def parse(records: Iterable[Record], batch: int = 0) -> Dump:
    """A dump of its lines; raises `DataError` for one that cannot be what it should."""
    lines = iter(records)
    header = _header(next(lines))
    updates: dict[int, Update] = {}
    rows: list[Row] = []
    first: Record | None = None
    for line in lines:
        if "loss" in line.fields:
            updates[_whole(line, "update", 0)] = Update(line.as_number("loss"), _number(line, "denominator"))
            continue
        first = first or line
        if lost := [name for name in first.fields if name in COLUMNS and name not in line.fields]:
            raise line.fail(f"column '{lost[0]}' is missing, which {first.place} has; all rows have the same columns")
        rows.append(_row(line, header, batch))
    if first is None:
        raise DataError("the dump has a header and no rows; expected one for each completion")
    return Dump(header, updates, rows)


def read_own(path: Path, batch: int = 0) -> Dump:
    """A dump in our own form."""
    return parse(_safetensors(path) if path.suffix == ".safetensors" else read_rows(str(path)), batch)


def joined(dumps: Sequence[Dump]) -> Dump:
    """Several dumps of the same settings as one; updates are numbered on."""
    rows: list[Row] = []
    updates: dict[int, Update] = {}
    for dump in dumps:
        if replace(dump.header, source="") != replace(dumps[0].header, source=""):
            raise DataError(f"{dump.rows[0].place}: the header differs from that of {dumps[0].rows[0].place}")
        begin = 1 + max([*updates, *(row.update for row in rows)], default=-1)
        rows += [replace(row, update=row.update + begin) for row in dump.rows]
        updates |= {number + begin: update for number, update in dump.updates.items()}
    return Dump(dumps[0].header, updates, rows)


def _header(line: Record) -> Header:
    if "format" not in line.fields:
        raise line.fail(f'it is no header; expected {{"format": "{FORMAT}", ...}} first, see docs/verify-dumps.md')
    try:
        return Header(**dict(line.fields))
    except UserError as error:
        raise line.fail(foreign(str(error))) from None


def _row(line: Record, header: Header, batch: int) -> Row:
    for name in line.fields:
        if name not in COLUMNS:
            raise line.fail(str(unknown("column", name, COLUMNS)))
    for name in _NEEDED:
        if name not in line:
            raise line.fail(f"column '{name}' is missing; this row has: {', '.join(line.fields)}")
    found = _numbers(line, "tokens") or []
    if not all(token >= 0 and token % 1 == 0 for token in found):  # NaN, where there is none
        raise line.fail("'tokens' must be whole numbers of 0 or more, one for each token")
    tokens = [int(token) for token in found]
    begin = _whole(line, "prompt_length", 0)
    if not 0 <= begin < len(tokens):
        raise line.fail(f"'prompt_length' is {begin}, of {len(tokens)} tokens; expected a token or more after it")
    count = len(tokens) - begin
    logprobs = {name: _tensor(line, f"{name}_logprobs", count) for name in ("sampler", "old", "trainer", "reference")}
    mask = _numbers(line, "mask", count, len(tokens)) or []
    mask_T = torch.tensor([0.0] * (len(tokens) - len(mask)) + mask) == 1
    advantages = line.get("advantages")
    if isinstance(advantages, int | float):  # of the whole completion
        advantages_N = torch.full((count,), float(advantages), dtype=torch.float64)
    else:
        advantages_N = _tensor(line, "advantages", count)
    truncated = line.get("truncated")
    return Row(
        place=line.place,
        tokens=tokens,
        prompt_length=begin,
        mask_T=mask_T,
        sampled_N=_sampled(line, tokens[begin:], logprobs["sampler"], header.stop_tokens),
        sampler_N=logprobs["sampler"],
        old_N=logprobs["old"],
        trainer_N=logprobs["trainer"],
        reference_N=logprobs["reference"],
        advantages_N=advantages_N,
        reward=_number(line, "reward"),
        group=str(line.get("group") if "group" in line else tokens[:begin]),
        batch=_whole(line, "batch", batch),
        update=_whole(line, "update", 0),
        micro_batch=_whole(line, "micro_batch", 0),
        epoch=_whole(line, "epoch", 0),
        truncated=None if truncated is None else bool(truncated),
    )


def _sampled(line: Record, said: Sequence[int], sampler_N: Tensor | None, stop: Sequence[int]) -> Bool[Tensor, "N"]:
    """What a row says was sampled, or what has a sampler's logprob, or all up to the first stop token."""
    if (given := _numbers(line, "sampled", len(said))) is not None:
        return torch.tensor(given) == 1
    if sampler_N is not None:
        return ~sampler_N.isnan()
    end = next((number for number, token in enumerate(said, 1) if token in stop), len(said))
    return torch.arange(len(said)) < end


def _numbers(line: Record, name: str, *lengths: int) -> list[float] | None:
    if name not in line:
        return None
    values = line.as_list(name)
    if lengths and len(values) not in lengths:
        wanted = " or ".join(map(str, lengths))
        raise line.fail(f"'{name}' has {len(values)} values; expected {wanted}, one for each token after the prompt")
    try:
        return [math.nan if value is None else float(value) for value in values]
    except (TypeError, ValueError):
        raise line.fail(f"'{name}' must be a list of numbers; got {values!r:.60}") from None


def _tensor(line: Record, name: str, count: int) -> Float[Tensor, "N"] | None:
    values = _numbers(line, name, count)
    return None if values is None else torch.tensor(values, dtype=torch.float64)


def _number(line: Record, name: str) -> float | None:
    return line.as_number(name) if name in line else None


def _whole(line: Record, name: str, otherwise: int) -> int:
    return int(line.as_number(name)) if name in line else otherwise


_OF_ROWS = {"rewards": "reward", "groups": "group", "batches": "batch", "updates": "update"} | {
    "micro_batches": "micro_batch",
    "epochs": "epoch",
    "truncated": "truncated",
}


def _safetensors(path: Path) -> list[Record]:
    """The lines that a safetensors file stands for."""
    try:
        with safe_open(path, framework="pt") as opened:
            said = json.loads((opened.metadata() or {}).get("posttrain", "{}"))
            found: dict[str, list[Any]] = {name: opened.get_tensor(name).tolist() for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise DataError(f"cannot read {path.name} as safetensors: {first_line(error)}") from None
    lines = [Record({k: v for k, v in said.items() if k != "updates"}, f"{path.name} metadata", path.name)]
    lines += [Record(update, f"{path.name} metadata", path.name) for update in said.get("updates", [])]
    for name in ("tokens", "lengths", "prompt_lengths", "mask"):
        if name not in found:
            raise DataError(f"{path.name}: tensor '{name}' is missing; it has: {', '.join(found)}")
    if other := next((name for name, values in found.items() if values and isinstance(values[0], list)), ""):
        raise DataError(f"{path.name}: tensor '{other}' has rows; expected one dimension, row after row")
    lengths, prompts = found.pop("lengths"), found.pop("prompt_lengths")
    if len(lengths) != len(prompts):
        raise DataError(f"{path.name}: {len(lengths)} 'lengths' and {len(prompts)} 'prompt_lengths'; expected as many")
    after = [length - prompt for length, prompt in zip(lengths, prompts, strict=True)]
    fields: list[dict[str, Any]] = [{"prompt_length": prompt} for prompt in prompts]
    for name, values in found.items():
        of_rows = name in _OF_ROWS or (name == "advantages" and len(values) == len(lengths) != sum(after))
        whole = name == "tokens" or (name == "mask" and len(values) == sum(lengths))
        sizes = [1] * len(lengths) if of_rows else lengths if whole else after
        if len(values) != sum(sizes):
            raise DataError(f"{path.name}: tensor '{name}' has {len(values)} values; expected {sum(sizes)}")
        begin = 0
        for row, size in zip(fields, sizes, strict=True):
            row[_OF_ROWS.get(name, name)] = values[begin] if of_rows else values[begin : begin + size]
            begin += size
    return lines + [Record(row, f"{path.name} row {number}", path.name) for number, row in enumerate(fields, 1)]
