"""Below the recipes nothing knows how an option is typed: texts there name parameters, in backticks.

`errors.as_typed` makes flags of them where a text reaches a person at a command line.
"""

import ast
import json
import keyword
import re
from pathlib import Path

import pytest

from posttrain import errors
from posttrain.cli import main
from posttrain.errors import UserError
from posttrain.recipes import verify
from posttrain.recipes.best_of_n import BestOfNResult
from posttrain.recipes.generate import GenerateResult
from tests.test_suggestions import EVERY, OF_OTHERS
from tests.test_walls import MAY_IMPORT, PACKAGE

FLAG = re.compile(r"(?<![\w\0-])--(?:[a-z][a-z0-9]*(?:-[a-z0-9]+)*|(?=\0))")
"""An option in a text, also one whose name is put in when the text is made."""

PARAMETER = re.compile(r"(?<!`)`([A-Za-z_]\w*)(?:=[^`]*)?`(?!`)")

OF_LIBRARIES = {"models/lora.py": {"is_gradient_checkpointing", "Conv1D"}}
"""What other libraries have in backticks, in messages of theirs that a file knows."""


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


def flags_below(package: Path = PACKAGE) -> list[str]:
    """Each option that a file below the recipes names."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        if file.split("/")[0].removesuffix(".py") in MAY_IMPORT:
            named = [flag for text in texts(path.read_text(encoding="utf-8")) for flag in FLAG.findall(text)]
            found += [f"{file}: {flag}" for flag in named if flag not in OF_OTHERS.get(file, set())]
    return found


TYPED = {option.removeprefix("--").replace("-", "_") for option in EVERY}
NAMES = {f"{name}_" if keyword.iskeyword(name) else name for name in TYPED}
"""Of all options of all commands, as parameters."""


def test_the_names_of_all_options_are_known_where_errors_are_shown() -> None:
    switched_off = {name for name in NAMES if name.startswith("no_") and name[3:] in NAMES}
    assert errors._options() == NAMES - switched_off - {"help", "help_all", "version"}


def no_parameters(package: Path = PACKAGE) -> list[str]:
    """Each name in backticks that is no option of any command, in a text of any room."""
    names = NAMES
    return [
        f"{file}: {name}"
        for path in sorted(package.rglob("*.py"))
        for file in [path.relative_to(package).as_posix()]
        for text in texts(path.read_text(encoding="utf-8"))
        for name in PARAMETER.findall(text)
        if name not in names | OF_LIBRARIES.get(file, set())
    ]


def test_no_file_below_the_recipes_names_an_option_as_it_is_typed() -> None:
    found = flags_below()
    assert not found, "name the parameter, in backticks (errors.as_typed): " + "; ".join(found)


def test_every_name_in_backticks_is_an_option_of_a_command() -> None:
    found = no_parameters()
    assert not found, "of anything but options write 'name', for `name` becomes a flag: " + "; ".join(found)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""--lr."""\nx: int = 0\n"""--lr."""', 0),
        ('raise E("type --lr 3, or --lora-rank")', 2),
        ('raise E(f"--{name} must be 1", f"{x} --lr" " or --steps")', 3),
        ('run("git", "a--b", "---", "-x", f"{a}--{b}")', 0),
    ],
)
def test_options_in_texts_are_found_and_those_in_docstrings_are_not(tmp_path: Path, text: str, number: int) -> None:
    for room in ("data", "recipes"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "x.py").write_text(text)
    assert [line.split(":")[0] for line in flags_below(tmp_path)] == ["data/x.py"] * number


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"""Of `messages`."""\nx: int = 0\n"""Of `messages`."""', []),
        ('raise E("`lr`, `steps=3`, " f"`limit={x}`")', []),
        ('raise E("of `messages`, `Lr` or `mesages=3`")', ["messages", "Lr", "mesages"]),
        ('raise E(f"of `{x}` and `posttrain rl`, `a.b`, ``c``, ```python```")', []),
    ],
)
def test_names_in_backticks_that_are_no_options_are_found(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "x.py").write_text(text)
    assert no_parameters(tmp_path) == [f"x.py: {name}" for name in names]


ROWS = {
    "pairs.jsonl": {"prompt": "1+1?", "chosn": "2", "rejected": "3"},
    "said.jsonl": {"prompt": "1+1?", "completion": "2", "answer": "2"},
    "tools.jsonl": {"prompt": [{"role": "user", "content": "1+1?"}], "tools": 3, "completion": "2", "label": True},
}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("preference --algorithm dpop --reference-free", "leave out --reference-free"),  # algorithms
        ("rl --algorithm dpo", "type: posttrain preference --algorithm dpo"),
        ("convert --dataset pairs.jsonl --output o.jsonl", "map it with --columns chosen=chosn"),  # data
        ("convert --dataset tools.jsonl --to judgements --output o.jsonl", "rename it with --columns other=tools"),
        (
            "convert --dataset said.jsonl --output o.jsonl",
            "--algorithm kto, or of convert --to judgements or --to demo",
        ),
        ("convert --dataset gym:chain_sum --output o.jsonl", "it can be a --dataset of rl and evaluate"),
        ("convert --dataset said.jsonl --output o.csv", "an output file is required: --output NAME.jsonl"),  # runs
        ("sft --output used --dry-run", "or type --resume used to continue the run in it"),
        ("score --dataset said.jsonl --judge a=http://x/v1#m --judge-prompt 'b", "cannot read --judge-prompt"),
        (
            "score --dataset said.jsonl --reward asks.py:asks --quiet",
            "there are none; type --judge kind=MODEL",
        ),  # rewards
        ("annotate backup --store none.db", "there is no database none.db; name it with --store"),  # annotation
    ],
)
def test_who_types_a_command_reads_flags(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, row in ROWS.items():
        Path(name).write_text(json.dumps(row))
    Path("asks.py").write_text(ASKS)
    Path("used").mkdir()
    Path("used/config.toml").write_text("")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert says in said and "`" not in said and said.count("\n") == 1


ASKS = """
def asks(completion, reward_context):
    return reward_context.judge("kind")
"""


def test_results_name_flags_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "said.jsonl"
    data.write_text(json.dumps({"prompt": "1+1?", "completion": "2", "label": True}))
    words = ["convert", "--dataset", str(data), "--to", "demonstrations", "--output", str(tmp_path / "out.jsonl")]
    assert main(words) == 0
    assert "learn them with sft --train-on last" in capsys.readouterr().out


@pytest.mark.parametrize(
    "result",
    [
        GenerateResult("m", (), 1.0, ("spoken to with `system`",)),
        BestOfNResult(Path("b.jsonl"), 1, 0, 1, 0, (), 1.0, ("spoken to with `system`",), None, None),
    ],
    ids=lambda result: type(result).__name__,
)
def test_so_do_notes_of_results(result: GenerateResult | BestOfNResult) -> None:
    assert result.lines()[0] == "note: spoken to with --system"
    assert result.summary()["notes"] == ["spoken to with --system"]


def test_so_does_an_item_of_verify_that_could_not_be_checked() -> None:
    def check(subject: object) -> verify.Item:
        raise UserError("leave out `lora_rank`")

    assert verify._checked("updates", check, None).detail == "leave out --lora-rank"  # type: ignore[arg-type]
