"""What is recommended to whom, and that it can be typed."""

import doctest
import shlex

import pytest

from posttrain import algorithms, cli, lookup
from posttrain.errors import UserError
from posttrain.lookup import COMPUTE, FEEDBACK
from posttrain.lookup import advised as advise

ALL = [
    (have, compute, long)
    for have in [*((name,) for name in FEEDBACK), tuple(FEEDBACK), ("pairs", "verifiable"), ("thumbs", "pairs")]
    for compute in COMPUTE
    for long in (False, True)
]


@pytest.mark.parametrize(
    ("have", "compute", "long", "expected"),
    [
        (["verifiable"], "laptop", False, ["grpo"]),
        (["verifiable"], "gpu", True, ["dapo"]),
        (["verifiable"], "cluster", True, ["vapo"]),
        (["reward-model"], "laptop", False, ["rloo"]),
        (["reward-model"], "gpu", False, ["ppo"]),
        (["pairs"], "laptop", False, ["dpo"]),
        (["thumbs"], "gpu", False, ["kto"]),
        (["steps"], "gpu", False, ["step-dpo"]),
        (["demonstrations"], "gpu", False, ["sft"]),
        (["pairs", "verifiable", "demonstrations", "thumbs"], "gpu", False, ["sft", "dpo", "kto", "grpo"]),
        (["verifiable", "reward-model"], "cluster", False, ["grpo"]),  # what can be checked cannot be gamed
    ],
)
def test_what_is_recommended_first(have, compute, long, expected):
    assert [advice.method for advice in advise(have, compute, long=long)] == expected


@pytest.mark.parametrize(("have", "compute", "long"), ALL)
def test_what_is_recommended_can_be_typed_and_has_its_reasons(have, compute, long):
    for advice in advise(have, compute, long=long):
        assert advice.method in {*algorithms.ALGORITHMS, "sft"}
        program, *words = shlex.split(advice.command)
        name, argv = cli.find(words)
        assert program == "posttrain" and cli.read(name, argv)  # every option is known
        assert advice.because and advice.instead
        for other in advice.instead:
            named = [word.strip(",:") for word in other.split()]
            assert any(
                word in algorithms.ALGORITHMS or word in cli.COMMANDS or word.startswith(("--", "nothing", "collect"))
                for word in named
            )


def test_a_laptop_is_given_an_adapter():
    assert all("--lora-rank" in advise([kind], "laptop")[0].command for kind in ("verifiable", "reward-model", "pairs"))
    assert "--lora-rank" not in advise(["pairs"], "gpu")[0].command


@pytest.mark.parametrize(
    ("have", "compute", "what"),
    [
        ([], "gpu", "every method needs feedback"),
        (["pears"], "gpu", "unknown kind of feedback 'pears'.*pairs"),
        (["pairs"], "gpus", "unknown compute 'gpus'.*gpu"),
    ],
)
def test_what_is_not_known_is_refused(have, compute, what):
    with pytest.raises(UserError, match=what):
        advise(have, compute)


def test_the_command_says_it_in_words_and_as_json(capsys):
    assert cli.main(["advise", "--have", "thumbs", "--compute", "laptop", "--json"]) == 0
    said = capsys.readouterr().out
    assert '"method": "kto"' in said
    assert cli.main(["advise", "--have", "pairs, thumbs", "--compute", "gpu"]) == 0
    assert "1. dpo" in (said := capsys.readouterr().out) and "2. kto" in said and "because" in said


def test_it_asks_what_it_is_not_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert cli.main(["advise"]) == 2
    assert '--have "verifiable' in capsys.readouterr().err
    asked = []

    def answer(question):
        asked.append(question)
        return "y" if "pairs of answers" in question else "gpu" if "Compute" in question else ""

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert [advice["method"] for advice in lookup.advise(lookup.Advise())[1]] == ["dpo"]
    assert len(asked) == len(FEEDBACK) + 2


def test_examples():
    found = doctest.testmod(lookup)
    assert found.attempted and not found.failed
