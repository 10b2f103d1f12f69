"""Export to a folder that other tools load, with a model card, checked against the trained model.

    posttrain export merge --model runs/sft-2026-01-31-1 --output tickets-model
    posttrain export hf --model runs/rl-2026-01-31-1 --output my-model

`merge` adds an adapter to its base, so that the folder is a whole model. `hf` takes what was trained as it is: a whole
model or a reward model byte for byte, an adapter as an adapter. Before the folder gets its name, transformers alone
loads it and computes the logprobs of some texts, which must be those of what was trained.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from posttrain.data.digests import digests
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError, unknown
from posttrain.export import checking
from posttrain.export.card import Facts, model_card
from posttrain.export.checking import EXACT, ROUNDED, Difference
from posttrain.export.folder import copy_model, new_folder, refuse_occupied
from posttrain.export.merge import DTYPES, narrowed, plain_network, save_generation, scores_sequences, stored_dtype
from posttrain.models.load import base_of, load_model, locate, tokenizer_of
from posttrain.models.lora import is_adapter
from posttrain.options.tools import ExportHF, ExportMerge
from posttrain.runs.run import read_run
from posttrain.training.resolve_model import SavedModel, saved_model


@dataclass(frozen=True)
class ExportResult:
    """What was written, and how far it is from what was trained."""

    output: Path
    form: str  # merged, adapter, model or reward model
    dtype: str
    files: tuple[str, ...]
    tokens: int  # that were compared
    moved: Difference | None = None  # by the adapter, from its base
    exact: Difference | None = None  # before rounding, in float32
    written: Difference | None = None  # of the folder as transformers loads it
    notes: tuple[str, ...] = field(default=())

    @property
    def rounded(self) -> bool:
        """Whether the weights were computed in float32 and written in a narrower format."""
        return self.form == "merged" and self.dtype != "float32"

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        apart = {name: getattr(self, name) for name in ("moved", "exact", "written")}
        found = {name: None if value is None else value._asdict() for name, value in apart.items()}
        return {
            "output": str(self.output),
            "form": self.form,
            "dtype": self.dtype,
            "files": list(self.files),
            "tokens": self.tokens,
            "notes": list(self.notes),
            **found,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        return [
            f"{self.output}: {self.form}, {self.dtype}; {', '.join(self.files)}",
            *_sentences(self.tokens, self.moved, self.exact, self.written, rounded=self.rounded),
            *self.notes,
        ]


def run(config: ExportMerge | ExportHF) -> ExportResult:
    """Write the folder; nothing is left of it where anything fails."""
    saved, where, target = _prepare(config)
    with new_folder(target) as new:
        form = _merge if isinstance(config, ExportMerge) else _copy
        made = form(config, where, new, _Card(config.title or target.name, saved))
        files = tuple(sorted(path.name for path in new.iterdir()))
    return ExportResult(target, made.form, made.dtype, files, made.tokens, *made.apart, notes=saved.notes())


@dataclass(frozen=True)
class _Card:
    """What a model card says of a run, whatever is exported."""

    title: str
    saved: SavedModel

    def write(self, folder: Path, form: str, base: str, dtype: str, checked: list[str], adapter: Any = None) -> None:
        """Add README.md to a folder."""
        facts = Facts(self.title, form, base, dtype, adapter=adapter or {}, checked=checked, **self._run())
        (folder / "README.md").write_text(model_card(facts), encoding="utf-8")

    def _run(self) -> dict[str, Any]:
        if self.saved.run is None:
            return {}
        found = read_run(self.saved.run)
        state = json.loads((Path(self.saved.where) / "state.json").read_text(encoding="utf-8"))
        recorded: Mapping[str, str] | None = found.environment.get("data")
        return {
            "command": found.command,
            "config": found.config,
            "data": digests(found.config) if recorded is None else recorded,
            "recorded": recorded is not None,
            "metrics": [row for row in found.metrics if row.get("step", 0) <= state["step"]],
            "step": state["step"],
            "environment": found.environment,
        }


@dataclass(frozen=True)
class _Made:
    form: str
    dtype: str
    tokens: int
    apart: tuple[Difference | None, Difference | None, Difference | None]


def _prepare(config: ExportMerge | ExportHF) -> tuple[SavedModel, str, Path]:
    """Whatever is wrong with the options shows here, before weights are loaded."""
    if not config.model or not config.output:
        raise UserError("--model RUN, CHECKPOINT or FOLDER and --output FOLDER are required")
    if isinstance(config, ExportMerge) and config.dtype not in ("auto", *DTYPES):
        raise unknown("--dtype", config.dtype, ("auto", *DTYPES))
    target = Path(config.output).expanduser()
    refuse_occupied(target)
    saved = saved_model(config.model)
    where = locate(saved.where)
    if not Path(where).is_dir():
        raise UserError(f"'{config.model}' is no folder here; export takes a run, a checkpoint or a model's folder")
    if isinstance(config, ExportMerge) and not is_adapter(where):
        raise UserError(f"'{saved.title}' is not an adapter, so there is nothing to merge; type: posttrain export hf")
    return saved, str(Path(where).resolve()), target


def _merge(config: ExportMerge | ExportHF, where: str, new: Path, card: _Card) -> _Made:
    assert isinstance(config, ExportMerge)
    base = base_of(where)
    dtype = stored_dtype(base) if config.dtype == "auto" else DTYPES[config.dtype]
    model = load_model(where, dtype=torch.float32)
    tokenizer = load_tokenizer(tokenizer_of(where))
    texts = checking.texts_of(tokenizer, model.context)
    trained = checking.trained_logprobs(model, texts)
    with model.adapter.disable_adapter():
        moved = checking.difference(trained, checking.trained_logprobs(model, texts))
    network = plain_network(model, base)
    exact = checking.difference(checking.plain_logprobs(network, texts), trained)
    checking.refuse_far("the merged model", exact, rounded=False)
    network = narrowed(network, dtype)
    network.save_pretrained(str(new))
    save_generation(model, tokenizer, new)
    tokenizer.save_pretrained(str(new))
    rounded = dtype != torch.float32
    written = checking.difference(checking.reloaded_logprobs(new, texts), trained)
    checking.refuse_far(f"the merged model in {_name(dtype)}", written, rounded=rounded)
    adapter = json.loads((Path(where) / "adapter_config.json").read_text(encoding="utf-8"))
    checked = _sentences(len(trained), moved, exact, written, rounded=rounded)
    card.write(new, "merged", base, _name(dtype), checked, adapter)
    return _Made("merged", _name(dtype), len(trained), (moved, exact, written))


def _copy(config: ExportMerge | ExportHF, where: str, new: Path, card: _Card) -> _Made:
    base = base_of(where) if is_adapter(where) else _trained_from(card.saved, where)
    dtype = _name(stored_dtype(base if is_adapter(where) else where))
    copy_model(Path(where), new)
    (new / "README.md").unlink(missing_ok=True)  # of what was exported before, or peft's empty one
    adapter = json.loads((new / "adapter_config.json").read_text(encoding="utf-8")) if is_adapter(where) else None
    if not adapter and scores_sequences(where):
        card.write(new, "reward model", base, dtype, ["The weights are copied byte for byte."])
        return _Made("reward model", dtype, 0, (None, None, None))
    model = load_model(where, dtype=torch.float32)
    tokenizer = load_tokenizer(tokenizer_of(where))
    texts = checking.texts_of(tokenizer, model.context)
    trained = checking.trained_logprobs(model, texts)
    save_generation(model, tokenizer, new)
    if adapter:  # which may have had none
        tokenizer.save_pretrained(str(new))
    reloaded = checking.reloaded_logprobs(new, texts, base=base if adapter else "")
    written = checking.difference(reloaded, trained)
    checking.refuse_far("the copied model", written, rounded=False)
    form = "adapter" if adapter else "model"
    card.write(new, form, base, dtype, _sentences(len(trained), None, None, written, rounded=False), adapter)
    return _Made(form, dtype, len(trained), (None, None, written))


def _trained_from(saved: SavedModel, where: str) -> str:
    """The model that a run began with; of a folder without a run, itself."""
    return str(read_run(saved.run).config.get("model", where)) if saved.run else where


def _sentences(
    tokens: int, moved: Difference | None, exact: Difference | None, written: Difference | None, *, rounded: bool
) -> list[str]:
    """How far logprobs are apart, and how far they may be."""
    found: list[str] = []
    if moved:
        found.append(f"The adapter moves the logprobs of {tokens} tokens by {moved.mean:.2g} nats on average.")
    if exact:
        found.append(f"Merged in float32, they differ by {exact.largest:.2g} nats at most (allowed: {EXACT:g}).")
    if written:
        limits = f"allowed: {ROUNDED:g} on average" if rounded else f"allowed: {EXACT:g} at most"
        found.append(
            f"The folder as transformers loads it: {written.mean:.2g} nats on average, {written.largest:.2g} at most "
            f"({limits})."
        )
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
