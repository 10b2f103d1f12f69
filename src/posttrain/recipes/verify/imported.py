"""`posttrain verify --import`: which trainer wrote a file, and what can be checked of it.

slime's debug dumps and a batch of verl's are files of torch, read as tensors, lists and numbers alone; verl's rollout
log is text, of which scores, groups and repetitions are checked.
"""

import pickle
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.data import Record, read_rows
from posttrain.errors import DataError
from posttrain.recipes.verify.dump import FORMAT, Dump, joined, parse, read_own
from posttrain.recipes.verify.dump_checks import (
    first_update,
    length_drift,
    loss_mask,
    numbers,
    repeats,
    sampling,
    truncation,
)
from posttrain.recipes.verify.dump_losses import advantages, losses
from posttrain.recipes.verify.subject import Item

CHECKS = (numbers, loss_mask, truncation, sampling, length_drift, first_update, advantages, losses, repeats)
"""Of tokens, in the order of the loop that they are about."""
_TORCH = (".pt", ".pth", ".bin", ".pkl", ".pickle")
SILENT = 0.9
"""Groups whose scores are all equal: of more, nearly no completion teaches anything."""


def verify_dump(source: str) -> list[Item]:
    """Check a file, or each file of a folder as a batch of its own."""
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder '{source}'; expected a dump of rollouts, see docs/verify-dumps.md")
    files = sorted((p for p in path.iterdir() if p.is_file()), key=_in_order) if path.is_dir() else [path]
    if not files:
        raise DataError(f"the folder '{source}' is empty; expected dumps of rollouts")
    dumps = [_read(file, number) for number, file in enumerate(files)]
    dump = joined(dumps) if len(dumps) > 1 else dumps[0]
    return _of_text(dump) if dump.header.source == _TEXT else [check(dump) for check in CHECKS]


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Numbers in names count as numbers: 9.jsonl is before 10.jsonl."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _read(path: Path, batch: int) -> Dump:
    if path.suffix in _TORCH:
        return parse(_of_torch(path), batch)
    if path.suffix == ".safetensors":
        return read_own(path, batch)
    first = read_rows(str(path), limit=1)[0]
    if "format" not in first.fields and {"input", "output", "score"} <= set(first.fields):
        return parse(_verl_text(read_rows(str(path))), batch)
    return read_own(path, batch)


def _of_torch(path: Path) -> Iterator[Record]:
    """The lines that a file of torch stands for; one with more than tensors, lists and numbers is refused."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DataError(
            f"{path.name} holds Python objects besides tensors, lists and numbers, and reading those runs code; save "
            "it without them, such as torch.save(dict(batch), FILE)"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DataError(f"cannot read {path.name} as a file of torch: {type(error).__name__}") from None
    if isinstance(found, Mapping) and ("samples" in found or "rollout_data" in found):
        return _slime(found, path.name)
    if isinstance(found, Mapping) and {"prompts", "responses", "attention_mask"} <= set(found):
        return _verl(found, path.name)
    has = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
    raise DataError(
        f"{path.name}: expected slime's 'samples' or 'rollout_data', or verl's 'prompts', 'responses' and "
        f"'attention_mask'; it has {has:.200}"
    )


def _lines(source: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    yield Record({"format": FORMAT, "source": source}, name, name)
    for number, row in enumerate(rows, 1):
        given = {column: value for column, value in row.items() if value is not None}
        yield Record(given, f"{name} row {number}", name)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


_OF_SLIME = ("response_lengths", "loss_masks", "rollout_log_probs", "log_probs", "ref_log_probs", "advantages")


def _slime(found: Mapping[str, Any], name: str) -> Iterator[Record]:
    """Debug dumps of rollouts, where a sample is a dictionary, and of what was trained on, also as columns."""
    if "samples" in found:
        samples: list[dict[str, Any]] = list(found["samples"])
    else:
        columns = {k: v for k, v in found["rollout_data"].items() if hasattr(v, "__len__") and not isinstance(v, str)}
        count = len(columns.get("tokens", ()))
        if ragged := next((k for k in _OF_SLIME if k in columns and len(columns[k]) != count), ""):
            raise DataError(f"{name}: column '{ragged}' has {len(columns[ragged])} rows, and 'tokens' {count}")
        samples = [{k: v[i] for k, v in columns.items() if len(v) == count} for i in range(count)]
    raw = found.get("raw_reward") or []
    rows: list[dict[str, Any]] = []
    for number, sample in enumerate(samples):
        said = {key: _plain(value) for key, value in sample.items()}
        if "tokens" not in said or not {"response_length", "response_lengths"} & set(said):
            raise DataError(f"{name} row {number + 1}: a sample of slime has 'tokens' and 'response_length'")
        after = int(said["response_length" if "response_length" in said else "response_lengths"])
        mask = said.get("loss_mask", said.get("loss_masks")) or [1] * after
        reward = raw[number] if len(raw) == len(samples) else said.get("raw_reward", said.get("reward"))
        status = said.get("status")
        rows.append(
            {
                "tokens": said["tokens"],
                "prompt_length": len(said["tokens"]) - after,
                "mask": [0] * after if said.get("remove_sample") else mask,
                "sampled": mask,  # what a tool said has no mask of its own
                "sampler_logprobs": said.get("rollout_log_probs"),
                "old_logprobs": said.get("log_probs"),
                "reference_logprobs": said.get("ref_log_probs"),
                "advantages": said.get("advantages"),
                "reward": reward if isinstance(reward, int | float) else None,
                "group": said.get("group_index"),
                "truncated": status == "truncated" if status else said.get("truncated"),
            }
        )
    return _lines("slime", name, rows)


def _verl(found: Mapping[str, Any], name: str) -> Iterator[Record]:
    """The tensors of a batch of verl's trainer, padded on the left and right of where a response begins."""
    _refuse_ragged(found, name)
    begin = found["prompts"].shape[1]
    rows: list[dict[str, Any]] = []
    scores = found.get("token_level_scores", found.get("token_level_rewards"))
    for number, attended in enumerate(found["attention_mask"].bool()):
        real = attended[begin:]
        mask = found["response_mask"][number].bool() if "response_mask" in found else real
        end = 1 + max(real.nonzero().flatten().tolist() + mask.nonzero().flatten().tolist(), default=0)
        prompt = found["prompts"][number][attended[:begin]].tolist()
        columns = {
            ours: found[theirs][number][:end].tolist() if theirs in found else None
            for ours, theirs in {
                "sampler_logprobs": "rollout_log_probs",
                "old_logprobs": "old_log_probs",
                "reference_logprobs": "ref_log_prob",
                "advantages": "advantages",
            }.items()
        }
        rows.append(
            {
                "tokens": prompt + found["responses"][number][:end].tolist(),
                "prompt_length": len(prompt),
                "mask": mask[:end].tolist(),
                "sampled": (real & mask)[:end].tolist(),  # a tool's tokens are real, and have no mask
                "reward": None if scores is None else float(scores[number].sum()),
                "group": str(_plain(found["uid"][number])) if "uid" in found else None,
                **columns,
            }
        )
    return _lines("verl", name, rows)


_PADDED = ("responses", "response_mask", "token_level_scores", "token_level_rewards", "rollout_log_probs")
_PADDED = (*_PADDED, "old_log_probs", "ref_log_prob", "advantages")


def _refuse_ragged(found: Mapping[str, Any], name: str) -> None:
    """Refuse what is no tensor of verl's shape: a row for each prompt, a column for each token of a response."""
    for column in ("prompts", "attention_mask", *_PADDED):
        value = found.get(column)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or value.ndim != 2:
            has = f"shape {[*value.shape]}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise DataError(f"{name}: '{column}' is no tensor of rows and tokens; it is of {has}")
    count, after = found["responses"].shape
    wide = {"prompts": found["prompts"].shape[1], "attention_mask": found["prompts"].shape[1] + after}
    for column in ("prompts", "attention_mask", *_PADDED):
        expected = [count, wide.get(column, after)]
        if column in found and [*found[column].shape] != expected:
            raise DataError(f"{name}: '{column}' has shape {[*found[column].shape]}; expected {expected}")


_TEXT = "verl, text"


def _verl_text(lines: Sequence[Record]) -> Iterator[Record]:
    """The rollout log of verl: a token is a byte, of which nothing is checked."""
    yield Record({"format": FORMAT, "source": _TEXT}, lines[0].place, lines[0].id)
    for line in lines:
        prompt, said = (list(str(line.get(name) or "").encode()) for name in ("input", "output"))
        row = {"tokens": [*prompt, *said] or [0], "prompt_length": len(prompt) - (not said and bool(prompt))}
        row |= {"mask": [1] * (len(row["tokens"]) - row["prompt_length"]), "reward": line.as_number("score")}
        yield Record({**row, "group": str(line.get("input"))}, line.place, line.id)


def _of_text(dump: Dump) -> list[Item]:
    """What text alone can show."""
    scores: dict[tuple[int, ...], set[float]] = defaultdict(set)
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in dump.rows:
        scores[tuple(row.tokens)].add(row.reward or 0.0)
        groups[row.batch, row.group].append(row.reward or 0.0)
    found = [f"{len(said)} scores of one completion: {sorted(said)[:3]}" for said in scores.values() if len(said) > 1]
    silent = sum(len(set(one)) == 1 for one in groups.values()) / len(groups)
    sizes = sorted({len(one) for one in groups.values()})
    detail = f"share of {len(groups)} groups of {sizes[0]} to {sizes[-1]} whose scores are equal, which teach nothing"
    return [
        Item.unless("scores", found[:3], f"{len(dump.rows)} scores, the same for the same completion"),
        Item.within("groups", silent, SILENT, detail),
        repeats(dump),
        Item.skipped("tokens", "the file is text: mask, ratio, advantages and loss need the batch's tensors"),
    ]
