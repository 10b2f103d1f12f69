"""Model resolution: a run means its best checkpoint, or else its latest."""

import contextlib
import json
import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.data.digests import model_digest
from posttrain.errors import ModelError, PosttrainError, unknown
from posttrain.models.packaged import PACKAGED
from posttrain.models.precision import PRECISIONS, default_device
from posttrain.options.kinds import Model
from posttrain.training import checkpoint

_MODEL_FILES = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model to load."""

    where: str  # a folder, a hub id, or the name of a packaged model
    title: str  # the name in messages; of a run, with the selected checkpoint
    run: Path | None = None  # the run that trained it, if it is a checkpoint of one
    skipped: tuple[str, ...] = ()  # a line for each damaged checkpoint that was skipped

    def notes(self) -> tuple[str, ...]:
        """Messages to the user."""
        return tuple(f"skipped damaged checkpoint: {line}" for line in self.skipped)


def named(model: Model) -> str:
    """A model as text: of a run its folder."""
    return str(model if isinstance(model, str | Path) else getattr(model, "run", model))


def saved_model(name: Model) -> SavedModel:
    """Resolve a model name: a run or checkpoint folder, whose every byte is checked, or what `models.load` accepts."""
    name = named(name)
    path = Path(name).expanduser()
    if (path / "checksums.json").is_file():
        run = path.parent.parent
        return SavedModel(str(checkpoint.load(path).path), name, run if _is_run(run) else None)
    if name not in PACKAGED and not path.exists() and (runs := _runs_in(path.parent)):
        raise unknown("run", path.name, runs)  # a hub id looks the same, and would be looked for for a minute
    if not _is_run(path):
        return SavedModel(str(path) if path.is_dir() else name, name)
    root = path / "checkpoints"
    found = checkpoint.best(root) or checkpoint.latest(root)
    if found is None:
        inside = sorted({str(file.parent) for kind in _MODEL_FILES for file in path.rglob(kind)})
        there = f"there are models in it: {', '.join(inside)}" if inside else ""
        raise ModelError(f"the run {name} has no checkpoint; {there or 'wait until it has saved one, or name another'}")
    return SavedModel(str(found.path), f"{name} ({found.path.name})", path, found.skipped)


def began_from(name: Model, run: Path | None) -> SavedModel:
    """Resolve a model name, for a resumed run to the model that it resolved to when that run began.

    A run's name resolves to its best checkpoint, which changes if that run is trained further. environment.json
    records the folder, as `model`; for older runs without the record the name is resolved anew. A name of a different
    model is accepted here, and rejected by the comparison of digests.
    """
    name, about = named(name), _environment(run)
    began = found if isinstance(found := about.get("model"), str) else ""
    digest = inputs.get("model") if isinstance(inputs := about.get("inputs"), dict) else None

    def same(folder: str) -> bool:
        return Path(folder).is_dir() and digest == f"sha256:{model_digest(Path(folder))}"

    if began and Path(began).is_dir():
        with contextlib.suppress(PosttrainError):  # the name is not there any more, and need not be
            now = saved_model(name)
            later = now.run is not None and Path(began).is_relative_to(now.run.resolve())  # a checkpoint of one run
            another = not later and Path(now.where).is_dir() and bool(digest)
            if os.path.abspath(now.where) == began or (another and not same(now.where)):
                return now
        return replace(saved_model(began), title=name)
    gone = ModelError(f"{run} was started from {began}, which was not found; restore it, or pass its path with `model`")
    try:
        now = saved_model(name)
    except PosttrainError as error:
        raise (gone if os.path.isabs(began) else error) from None
    if os.path.isabs(began) and not Path(now.where).is_dir():
        raise gone
    if began and os.path.abspath(now.where) != began != now.where and not same(now.where):
        raise ModelError(
            f"{run} was started from {began}, which was not found, and {name} is {now.where} now; restore the first, "
            "or start a new run from the second"
        )
    return now


def precision_of(precision: str, run: Path | None) -> str:
    """The number format of a resumed run: for `auto` what the run began in, on the same kind of device.

    Which format is faster is measured, and a busy machine may measure otherwise; the run would not go on as it began.
    """
    began = _environment(run)
    known = str(began.get("precision", "")).removeprefix("torch.")
    same_kind = str(began.get("device", "")).partition(":")[0] == default_device()
    return known if precision == "auto" and same_kind and known in PRECISIONS else precision


def _environment(run: Path | None) -> dict[str, Any]:
    """What a run's environment.json says, of its last start where that says more; nothing where it cannot be read."""
    try:
        kept: Any = json.loads((run / "environment.json").read_text(encoding="utf-8")) if run else {}
    except (OSError, ValueError):
        return {}
    return kept | (kept.get("resumed") or [{}])[-1] if isinstance(kept, dict) else {}


def spoken_otherwise(saved: SavedModel, *, system: str | None, prompt_template: str) -> list[str]:
    """A line for each way in which the run that trained a model spoke to it otherwise: it may not understand this."""
    trained: dict[str, object] = {}
    if saved.run is not None:
        with contextlib.suppress(OSError, ValueError):
            trained = tomllib.loads((saved.run / "config.toml").read_text(encoding="utf-8"))
    if "prompt_template" not in trained:  # a command that has no such options, or a model that no run trained
        return []
    now = {"system": system, "prompt_template": prompt_template}
    return [
        f"{saved.title} was trained with `{key}` {trained.get(key)!r}, not with {value!r}"
        for key, value in now.items()
        if trained.get(key) != value
    ]


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and not any((path / file).exists() for file in _MODEL_FILES)


def _runs_in(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir() if _is_run(child)) if folder.is_dir() else []
