"""Export to a folder that other tools load, with a model card, checked against the trained model.

    posttrain export merge --model runs/sft-2026-01-31-1 --output tickets-model
    posttrain export hf --model runs/rl-2026-01-31-1 --output my-model
    posttrain export average --models "runs/a runs/b" --weights "0.7 0.3" --output my-model

`merge` adds an adapter to its base, so that the folder is a whole model. `hf` takes what was trained as it is: a whole
model or a reward model byte for byte, an adapter as an adapter. Before the folder gets its name, transformers alone
loads it and computes the logprobs of some texts, which must be those of what was trained. `average` writes the mean of
several models' weights, which no such check can be of; it has the files of the first beside.
"""

import contextlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from posttrain.data.digests import digests
from posttrain.data.tokenizer import load_tokenizer
from posttrain.durable import sync
from posttrain.errors import UserError, unknown, words_of
from posttrain.export import checking
from posttrain.export.card import Facts, model_card
from posttrain.export.checking import DTYPES, EXACT, ROUNDED, Difference, plain_network, save_generation, stored_dtype
from posttrain.models.averaging import averaged
from posttrain.models.load import base_of, is_classifier, load_model, locate, read_config, tokenizer_of
from posttrain.models.lora import is_adapter
from posttrain.options.tools import ExportAverage, ExportHF, ExportMerge
from posttrain.runs.run import read_run
from posttrain.training.resolve_model import SavedModel, saved_model

TRAINING = re.compile(r"(\w+-)?(optimizer|masters)|reference|state\.json|checksums\.json|\.")
"""What the names of files begin with that a checkpoint keeps for resuming; PART- are models beside the policy."""
FORMAT = {"format": "pt"}  # which transformers wants to be told of weights


@dataclass(frozen=True)
class ExportResult:
    """What was written, and how far it is from what was trained."""

    output: Path
    form: str  # merged, adapter, model or reward model
    dtype: str
    tokens: int = 0  # that were compared
    moved: Difference | None = None  # by the adapter, from its base
    exact: Difference | None = None  # before rounding, in float32
    written: Difference | None = None  # of the folder as transformers loads it
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The same in words."""
        return [f"{self.output}: {self.form}, {self.dtype}; {', '.join(self.files)}", *self.checks(), *self.notes]

    def checks(self) -> list[str]:
        """How far logprobs are apart, and how far they may be."""
        found: list[str] = []
        if self.moved:
            moved = f"{self.moved.mean:.2g} nats on average"
            found.append(f"The adapter moves the logprobs of {self.tokens} tokens by {moved}.")
        if self.exact:
            found.append(
                f"Merged in float32, they differ by {self.exact.largest:.2g} nats at most (allowed: {EXACT:g})."
            )
        if self.written:
            rounded = self.form == "merged" and self.dtype != "float32"
            limits = f"allowed: {ROUNDED:g} on average" if rounded else f"allowed: {EXACT:g} at most"
            found.append(
                f"The folder as transformers loads it: {self.written.mean:.2g} nats on average, "
                f"{self.written.largest:.2g} at most ({limits})."
            )
        return found


def run(config: ExportMerge | ExportHF) -> ExportResult:
    """Write the folder; nothing is left of it where anything fails."""
    saved, where, target = _prepare(config)
    adapter = is_adapter(where)
    begun = str(read_run(saved.run).config.get("model", where)) if saved.run else where
    base = base_of(where) if adapter else begun  # what a run began with; of a folder without a run, itself
    with new_folder(target) as new:
        made = _write(config, where, base, new, target)
        facts = Facts(
            config.title or target.name,
            made.form,
            base,
            made.dtype,
            adapter=json.loads((Path(where) / "adapter_config.json").read_text(encoding="utf-8")) if adapter else {},
            checked=made.checks() if made.written else ["The weights are copied byte for byte."],
            **_of_run(saved),
        )
        (new / "README.md").write_text(model_card(facts), encoding="utf-8")
        files = tuple(sorted(path.name for path in new.iterdir()))
    return replace(made, files=files, notes=saved.notes())


def average(config: ExportAverage) -> ExportResult:
    """Write the folder of the average; nothing is left of it where anything fails."""
    names, target = words_of("models", config.models), Path(config.output).expanduser()
    if len(names) < 2 or not config.output:
        raise UserError('--models "A B" of two models or more and --output FOLDER are required')
    refuse_occupied(target)
    shares = _shares(config.weights, len(names))
    models = [saved_model(name) for name in names]
    folders = [Path(locate(saved.where)).resolve() for saved in models]
    for saved, folder in zip(models, folders, strict=True):
        if not folder.is_dir():
            raise UserError(f"'{saved.title}' is no folder here; an average takes runs, checkpoints or models' folders")
        if is_adapter(folder):
            raise UserError(f"'{saved.title}' is an adapter; type: posttrain export merge, then average what it writes")
    said = ", ".join(f"{share:.3g} of {saved.title}" for share, saved in zip(shares, models, strict=True))
    with new_folder(target) as new:
        weights = averaged(folders, shares)
        copy_model(folders[0], new)
        for path in (*new.glob("*.safetensors"), *new.glob("*.safetensors.index.json")):
            path.unlink()
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, new / "model.safetensors", FORMAT)
        read_config(str(new), str(new))  # it can be loaded
        dtype = _name(next(iter(weights.values())).dtype)
        checked = [f"Weights are averaged in float32: {said}."]
        facts = Facts(target.name, "model", names[0], dtype, checked=checked)
        (new / "README.md").write_text(model_card(facts), encoding="utf-8")
        files = tuple(sorted(path.name for path in new.iterdir()))
    return ExportResult(target, f"average of {said}", dtype, files=files, notes=sum((m.notes() for m in models), ()))


def _shares(text: str, models: int) -> list[float]:
    """The share of each model in an average."""
    words = text.replace(",", " ").split() or ["1"] * models
    try:
        weights = [float(word) for word in words]
    except ValueError:
        weights = [math.nan]
    total = sum(weights)
    if len(weights) != models or not all(0 <= weight < math.inf for weight in weights) or not total:
        raise UserError(f'--weights has a number of 0 or more for each of the {models} models, not all 0; got "{text}"')
    return [weight / total for weight in weights]


def _of_run(saved: SavedModel) -> dict[str, Any]:
    if saved.run is None:
        return {}
    found = read_run(saved.run)
    state = json.loads((Path(saved.where) / "state.json").read_text(encoding="utf-8"))
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


def _write(config: ExportMerge | ExportHF, where: str, base: str, new: Path, output: Path) -> ExportResult:
    """Merge or copy into the folder `new`, and compare what transformers loads there with what was trained."""
    adapter, merging = is_adapter(where), isinstance(config, ExportMerge)
    dtype = stored_dtype(base if adapter else where)
    if isinstance(config, ExportMerge) and config.dtype != "auto":
        dtype = DTYPES[config.dtype]
    if not merging:
        copy_model(Path(where), new)
        if not adapter and is_classifier(read_config(where, where)):
            return ExportResult(output, "reward model", _name(dtype))
    model, tokenizer = load_model(where, dtype=torch.float32), load_tokenizer(tokenizer_of(where))
    texts = checking.texts_of(tokenizer, model.context)
    trained = checking.trained_logprobs(model, texts)
    moved = exact = None
    if merging:
        with model.adapter.disable_adapter():
            moved = checking.difference(trained, checking.trained_logprobs(model, texts))
        network = plain_network(model, base)
        exact = checking.difference(checking.plain_logprobs(network, texts), trained)
        checking.refuse_far("the merged model", exact, rounded=False)
        checking.narrowed(network, dtype).save_pretrained(str(new))
        del network  # another one is loaded
    save_generation(model, tokenizer, new)
    if adapter:  # which may have had none
        tokenizer.save_pretrained(str(new))
    reloaded = checking.reloaded_logprobs(new, texts, base=base if adapter and not merging else "")
    written = checking.difference(reloaded, trained)
    what = f"the merged model in {_name(dtype)}" if merging else "the copied model"
    checking.refuse_far(what, written, rounded=merging and dtype != torch.float32)
    form = "merged" if merging else "adapter" if adapter else "model"
    return ExportResult(output, form, _name(dtype), len(trained), moved, exact, written)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, which becomes `target` when the block ends and goes when it fails."""
    refuse_occupied(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.writing-", dir=target.parent))
        new = scratch / target.name  # mkdtemp's own folder is readable by its owner alone
        new.mkdir()
    except OSError as error:
        raise UserError(f"cannot write to '{target}': {error.strerror}; name another folder with `output`") from error
    try:
        yield new
        for path in new.rglob("*"):
            sync(path)
        refuse_occupied(target)  # it may have come meanwhile
        if target.is_dir():
            target.rmdir()
        new.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refuse_occupied(target: Path) -> None:
    """Nothing that is there is written over; raises `UserError`."""
    if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"'{target}' exists and is not an empty folder; name another one with `output`, or remove it")


def copy_model(source: Path, target: Path) -> None:
    """Copy the files of a model, byte for byte, without those that are for resuming."""
    for path in source.iterdir():
        if path.is_file() and not TRAINING.match(path.name) and path.suffix not in (".bin", ".pt", ".pkl"):
            shutil.copyfile(path, target / path.name)
