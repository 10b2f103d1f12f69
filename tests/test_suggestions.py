"""Options that errors, notes and advice name: each is one that a command has."""

import ast
import itertools
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from posttrain import lookup as rules
from posttrain.cli import find, main, read
from posttrain.commands import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "posttrain"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w=:-]|-)")
SURFACE = [line.split() for line in (ROOT / "tests" / "surface.txt").read_text(encoding="utf-8").splitlines()]

BWRAP = (
    "security-opt seccomp info-fd unshare-all unshare-user die-with-parent clearenv cap-drop as-pid-1 uid gid hostname "
    "ro-bind symlink dev-bind size tmpfs remount-ro chdir setenv"
)
OF_OTHERS = {
    "sandbox/isolation.py": {f"--{word}" for word in BWRAP.split()},  # and, the first, docker
    "models/packaged.py": {"--no-deps", "--only-binary", "--no-input", "--quiet", "--disable-pip-version-check"},  # pip
    "runs/environment.py": {"--no-optional-locks", "--porcelain", "--untracked-files"},  # git
    "annotation/store/database.py": {"--format", "--file"},  # pg_dump
    "report/run_report.py": {"--low", "--high", "--at"},  # custom properties of CSS
    "serving/jobs/services.py": {"--model", "--output", "--title", "--resume", "--config"},  # it starts posttrain
    "engine/vllm_server.py": {"--port", "--logprobs-mode", "--tokens-only", "--worker-extension-cls", "--dtype"},
}
"""Options of other programs, by the file that names them."""

OF_COMMANDS = {
    "best_of_n": ("best-of-n",),
    "evaluate_reward": ("evaluate-reward-model",),
    "jobs": ("jobs", "rl", "export"),  # it runs the second, or what takes the same options, and the third
    "reward_model": ("reward-model",),
    "verify": ("verify", "rl"),  # it runs the second
}
"""Which commands a recipe is, where its name does not say it."""


@cache
def options_of(command: str) -> set[str]:
    """Every option of a command, of all its forms and algorithms; of a switch also the one that turns it off."""
    lead = ["posttrain", *command.split()]
    lines = [line for line in SURFACE if line[: len(lead)] == lead]
    found = {word for line in lines for word in line if word.startswith("--")}
    found |= {line[-3].replace("--", "--no-") for line in lines if line[-1] in ("True", "False")}
    return found | {"--help", "--help-all", "--version"}


EVERY = set().union(*map(options_of, COMMANDS))


def strings(path: Path) -> list[str]:
    """Every text in a file; the parts of one that is put together count as one, and docstrings as well."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
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

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def named(text: str) -> set[str]:
    """The options that a text names: no custom property of CSS, no flag that is made while the text is."""
    return set(OPTION.findall(text))


def test_what_counts_as_an_option_in_a_text() -> None:
    assert named('type --lora-rank 16 (--lr), or "--x"; not --low:3, a--b, ---, --\0') == {"--lora-rank", "--lr", "--x"}


def named_commands(text: str) -> set[str]:
    """The options of the commands that a text names."""
    names = [name for name in COMMANDS if re.search(rf"posttrain {name}\b|\b{name} --", text)]
    return set().union(*map(options_of, names))


def speakers(file: str) -> tuple[str, ...]:
    """The commands that a file speaks for: a recipe for itself, everything else for whoever calls it."""
    parts = file.split("/")
    recipe = parts[1].removesuffix(".py") if parts[0] == "recipes" else ""
    if recipe in ("", "__init__", "annotate"):
        return ()
    name = recipe.replace("_", "-")
    return OF_COMMANDS.get(recipe) or tuple(c for c in COMMANDS if c == name or c.startswith(f"{name} "))


def test_every_option_that_a_text_names_is_an_option_of_the_command_that_says_it() -> None:
    """A command may name another one's option if it names the other one, too."""
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        own = set().union(*map(options_of, speakers(file))) if speakers(file) else EVERY
        for text in filter(named, strings(path)):
            unknown = named(text) - own - OF_OTHERS.get(file, set()) - named_commands(text)
            wrong += [f"{file}: {option} in {' '.join(text.split())[:80]!r}" for option in sorted(unknown)]
    assert not wrong, "\n".join(wrong)


ASKED = [
    (have, compute, long)
    for have in [*((name,) for name in rules.FEEDBACK), tuple(rules.FEEDBACK), ("thumbs", "pairs")]
    for compute, long in itertools.product(rules.COMPUTE, (False, True))
]


def test_every_option_that_advice_names_is_one_of_the_command_that_it_gives() -> None:
    for have, compute, long in ASKED:
        for advice in rules.advised(have, compute, long=long):
            name, argv = find(shlex.split(advice.command)[1:])
            assert read(name, argv)
            for text in (*advice.because, *advice.instead):
                assert named(text) <= options_of(name) | named_commands(text), text


@pytest.mark.parametrize("compute", rules.COMPUTE)
def test_who_has_a_reward_model_is_told_to_type_its_name(compute: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--have", "reward-model", "--compute", compute]) == 0
    said = capsys.readouterr().out
    typed = next(line for line in said.splitlines() if line.strip().startswith("posttrain rl "))
    assert " --reward-model " in typed and " --reward " not in typed
    assert "--reward FILE.py:function" in said  # for who has a function of their own


@pytest.mark.parametrize("name", ["rl", "best-of-n"])
def test_the_help_of_gold_says_what_goes_by_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`bindings/test_heldout.py` shows that it does."""
    assert main([name, "--help-all"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "never optimised" in said and "The best checkpoint and --stop-after go by gold" in said
    assert "chosen by" not in said
