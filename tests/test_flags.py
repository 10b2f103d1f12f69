"""Below the recipes nothing knows how an option is typed: an error there names the parameter, and the caller its flag.

What does so today is counted by file in `ALLOWED`. A number may only go down; a file that is not there has none.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.test_suggestions import OF_OTHERS
from tests.test_walls import MAY_IMPORT, PACKAGE

FLAG = re.compile(r"(?<![\w\0-])--(?:[a-z][a-z0-9]*(?:-[a-z0-9]+)*|(?=\0))")
"""An option in a text, also one whose name is put in when the text is made."""

FORMS = "setup"  # the room of option forms, which are typed as the recipes' own

ALLOWED: dict[str, int] = {
    "algorithms/__init__.py": 1,
    "algorithms/algorithm.py": 1,
    "algorithms/dpop.py": 1,
    "algorithms/tdpo.py": 1,
    "annotation/app/security.py": 1,
    "annotation/app/conversations.py": 1,
    "annotation/store/backup.py": 5,
    "annotation/store/database.py": 1,
    "annotation/store/projects.py": 1,
    "data/convert.py": 1,
    "data/demonstrations.py": 1,
    "data/gym.py": 2,
    "data/packing.py": 2,
    "data/preferences.py": 5,
    "data/rendering.py": 5,
    "data/rows.py": 2,
    "data/sources.py": 1,
    "data/tasks.py": 4,
    "data/tokenizer.py": 3,
    "data/tool_calls.py": 2,
    "environments/judged.py": 2,
    "export/checking.py": 1,
    "export/folder.py": 2,
    "models/attributes.py": 2,
    "models/gradient_checkpointing.py": 2,
    "models/lora.py": 2,
    "models/lora_config.py": 6,
    "models/precision.py": 1,
    "report/checks.py": 1,
    "runs/jsonl.py": 1,
    "runs/resumable_output.py": 1,
    "report/run_report.py": 3,
    "runs/run_directory.py": 3,
    "planning/costs.py": 6,
    "planning/plan.py": 3,
    "rewards/context.py": 1,
    "rollouts/budget.py": 1,
    "rollouts/engine.py": 1,
    "rollouts/prompt_filter.py": 2,
    "rollouts/monte_carlo_values.py": 1,
    "evaluation/policy_kl.py": 1,
    "rollouts/sampler.py": 1,
    "rollouts/scorer.py": 1,
    "rollouts/vllm_server.py": 1,
    "session/inputs.py": 2,
    "session/session.py": 1,
    "training/optimizer.py": 1,
    "training/optimizer_state.py": 1,
    "training/resolve_model.py": 2,
    "training/schedule.py": 1,
}


def texts(source: str) -> list[str]:
    """Every text in a source but docstrings; the parts of one that is put together count as one."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.JoinedStr):
            found.append("".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values))
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    visit(value.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(source))
    return found


def flags_below(package: Path = PACKAGE) -> dict[str, int]:
    """How many options each file below the recipes names."""
    found: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        if file.split("/")[0].removesuffix(".py") in MAY_IMPORT.keys() - {FORMS}:
            named = [flag for text in texts(path.read_text(encoding="utf-8")) for flag in FLAG.findall(text)]
            if number := sum(flag not in OF_OTHERS.get(file, set()) for flag in named):
                found[file] = number
    return found


def test_no_file_below_the_recipes_names_more_options_than_it_did() -> None:
    found = flags_below()
    more = [
        f"{file}: {found[file]}, not {ALLOWED.get(file, 0)}" for file in found if found[file] > ALLOWED.get(file, 0)
    ]
    assert not more, "name the parameter, and let the recipe or the command line name its option: " + "; ".join(more)
    fewer = [f"{file}: {found.get(file, 0)}" for file in ALLOWED if found.get(file, 0) < ALLOWED[file]]
    assert not fewer, "lower the numbers in ALLOWED: " + "; ".join(fewer)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""--lr."""\nx: int = 0\n"""--lr."""', 0),
        ('raise E("type --lr 3, or --lora-rank")', 2),
        ('raise E(f"--{name} must be 1", f"{x} --lr" " or --steps")', 3),
        ('run("git", "a--b", "---", "-x", f"{a}--{b}")', 0),
    ],
)
def test_options_in_texts_are_counted_and_those_in_docstrings_are_not(tmp_path: Path, text: str, number: int) -> None:
    for room in ("data", "recipes"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "x.py").write_text(text)
    assert flags_below(tmp_path) == ({"data/x.py": number} if number else {})
