"""What a change can reach: through imports, names in texts, commands, conftests, and files that are not Python."""

from pathlib import Path

import pytest

from tests.changed import reached

HOUSE = {
    "src/posttrain/__init__.py": "",
    "src/posttrain/kl.py": '"""A text, of `posttrain.far`."""',
    "src/posttrain/loss.py": "def f():\n    from posttrain import kl",
    "src/posttrain/commands.py": 'TABLE = {"sft": ("all", "sft"), "rl": ("all", "rl")}\nload = "posttrain.recipes."',
    "src/posttrain/cli.py": "from posttrain import commands",
    "src/posttrain/__main__.py": "from posttrain import cli",
    "src/posttrain/recipes/__init__.py": "",
    "src/posttrain/recipes/sft.py": "",
    "src/posttrain/recipes/rl/__init__.py": 'load = f"{__name__}.{1}"',
    "src/posttrain/recipes/rl/step.py": "from posttrain.loss import f",
    "src/posttrain/recipes/rl/prompt.txt": "",
    "src/posttrain/far.py": "",
    "docs/page.md": "",
    "tests/__init__.py": "",
    "tests/tiny.py": "",
    "tests/test_kl.py": "from posttrain.kl import a\nfrom tests import tiny",
    "tests/test_texts.py": 'patched = "posttrain.far.a"\npage = "page.md"',
    "tests/test_walls.py": 'source.rglob("*.py")',
    "tests/runs/conftest.py": "",
    "tests/runs/test_rl.py": 'from posttrain.cli import main\nmain(["rl"])',
    "tests/runs/test_sft.py": 'run("-m", "posttrain", "sft --steps 2")',
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in HOUSE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/posttrain/kl.py", ["runs/test_rl", "test_kl"]),
        ("src/posttrain/loss.py", ["runs/test_rl"]),
        ("src/posttrain/recipes/rl/step.py", ["runs/test_rl"]),
        ("src/posttrain/recipes/rl/prompt.txt", ["runs/test_rl"]),
        ("src/posttrain/recipes/sft.py", ["runs/test_sft"]),
        ("src/posttrain/commands.py", ["runs/test_rl", "runs/test_sft"]),
        ("src/posttrain/__main__.py", ["runs/test_sft"]),
        ("src/posttrain/far.py", ["test_texts"]),
        ("docs/page.md", ["test_texts"]),
        ("tests/tiny.py", ["test_kl"]),
        ("tests/test_kl.py", ["test_kl"]),
        ("tests/runs/conftest.py", ["runs/test_rl", "runs/test_sft"]),
        ("pyproject.toml", ["runs/test_rl", "runs/test_sft", "test_kl", "test_texts", "test_walls"]),
        ("LICENSE", []),
        ("src/posttrain/gone.py", []),
    ],
)
def test_a_change_reaches_the_tests_that_import_it(house: Path, changed: str, tests: list[str]) -> None:
    every_source = ["test_walls"] if changed.startswith("src/") else []
    assert reached([changed], house) == [f"tests/{name}.py" for name in dict.fromkeys(tests + every_source)]
