import dataclasses
import doctest
import inspect
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from posttrain import catalogue
from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.grpo import GRPO
from posttrain.errors import UserError
from posttrain.options.hyperparameters import field_docstrings
from posttrain.parsing import flag
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT


@dataclass(frozen=True)
class Wrapper(GRPO):
    """A special case: another default, and a knob of its own."""

    clip_high: float = 0.28
    """Higher than below."""

    ceiling: float = 3.0
    """A knob of its own,
    explained in two lines."""

    paper: ClassVar[str] = "0000.00000"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_knob_of_every_algorithm_is_explained_with_its_default(name):
    text = catalogue.explain(name)
    algorithm = type(ALGORITHMS[name]())
    texts = field_docstrings(algorithm)
    for knob in dataclasses.fields(algorithm):
        assert texts.get(knob.name), f"{name}.{knob.name} has no docstring under it"
        assert f"{flag(knob.name)} {knob.default}\n" in text
    assert catalogue.describe(name).paper in text
    command = {"online": "rl", "preference": "preference", "supervised": "sft"}[catalogue.describe(name).family]
    assert f"posttrain {command} --algorithm {name}" in text


def test_the_command_names_what_the_algorithm_cannot_do_without():
    assert "--algorithm opd --dataset gym:chain_sum --teacher OWNER/NAME\n" in catalogue.explain("opd")
    assert "--dataset gym:chain_sum --pretraining-dataset texts.jsonl\n" in catalogue.explain("ppo-ptx")
    assert "--algorithm grpo --dataset gym:chain_sum\n" in catalogue.explain("grpo")


def test_explain_grpo_has_the_equation_and_what_seven_tools_call_by_that_name():
    text = catalogue.explain("grpo")
    assert "(r_i - mean(r)) / std(r)" in text
    for tool in ("TRL", "verl", "NeMo RL", "prime-rl", "tinker-cookbook", "open-instruct", "OpenRLHF"):
        assert f"\n    {tool} " in text
    assert "--clip-high 0.272 --kl-coefficient 0.05 --kl-estimator k2" in text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_flags_named_in_the_text_are_knobs(name):
    text = catalogue.explain(name)
    knobs = dataclasses.fields(ALGORITHMS[name]())
    known = {flag(knob.name) for knob in knobs} | {"--algorithm", "--dataset"}
    negated = {flag(f"no_{knob.name}") for knob in knobs if isinstance(knob.default, bool)}
    recipes = {
        flag(field.name) for form in (RL, Preferences, OnlinePreference, SFT) for field in dataclasses.fields(form)
    }
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert known <= found <= known | negated | recipes


def test_a_wrapper_inherits_the_knobs_it_does_not_restate():
    texts = field_docstrings(Wrapper)
    knobs = {knob.name: (knob.default, texts[knob.name]) for knob in dataclasses.fields(Wrapper)}
    assert knobs["clip_high"] == (0.28, "Higher than below.")
    assert knobs["ceiling"] == (3.0, "A knob of its own, explained in two lines.")
    assert knobs["clip_low"][1].startswith("The importance ratio is clipped at 1 - clip_low")
    assert "paper" not in knobs


def test_rows_have_all_algorithms_by_name():
    assert [row.name for row in catalogue.rows()] == sorted(ALGORITHMS)
    assert catalogue.describe("grpo") == (
        "grpo",
        "online",
        "advantage",
        "2402.03300",
        ("reward", "groups", "reference"),
        2,
        2,
    )
    needs = {row.name: row.needs for row in catalogue.rows()}
    assert needs["dapo"] == ("reward", "groups") and needs["reinforce"] == ("reward", "reference")
    assert needs["remax"] == ("reward", "reference", "greedy completions")
    assert needs["vineppo"] == ("reward", "reference", "continuations") and needs["vapo"] == ("reward", "critic")
    assert needs["ppo-ptx"] == ("reward", "critic", "reference", "pretraining text")
    assert needs["rae"] == ("reward", "moving baselines") and needs["opd"] == ("reward", "teacher")
    assert needs["gkd"] == ("reward", "teacher's distributions")
    assert needs["simpo"] == ("pairs",) and needs["dpo"] == ("pairs", "reference")
    assert needs["gdpo"] == ("reward", "groups", "scores by name") and needs["dft"] == ("demonstrations",)
    changes = {row.name: row.changes for row in catalogue.rows()}
    assert set(changes.values()) == set(catalogue.CHANGES)
    assert [changes[name] for name in ("maxrl", "gspo", "kl-cov", "dppo")] == list(catalogue.CHANGES)[:4]
    assert (changes["dpo"], changes["sft"]) == ("pairs", "demonstrations")
    assert needs["kto"] == ("good and bad responses", "reference")


def test_what_a_step_costs():
    costs = {row.name: (row.models, row.forwards) for row in catalogue.rows()}
    assert costs["dapo"] == (1, 1)  # nothing but the policy
    assert costs["vapo"] == (1, 2)  # the values before the update
    assert costs["ppo"] == (2, 3)  # those, and the reference
    assert costs["opd"] == costs["gkd"] == (2, 2) and costs["rae"] == (1, 1)
    assert costs["dpo"] == (1, 2) and costs["simpo"] == (1, 1)  # what a reference says of pairs is remembered
    assert costs["tdpo"] == (2, 2)
    assert costs["kto"] == (2, 4)  # responses and others that do not answer their prompts, by policy and reference


def test_an_algorithm_is_a_short_file():
    lengths = {
        name: len(Path(inspect.getfile(type(make()))).read_text().splitlines()) for name, make in ALGORITHMS.items()
    }
    assert statistics.median(lengths.values()) < 80 and max(lengths.values()) < 200


@pytest.mark.parametrize("function", [catalogue.describe, catalogue.explain])
def test_an_unknown_name_gives_the_nearest_one(function):
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        function("gprpo")


def test_docstring_examples_run():
    results = doctest.testmod(catalogue)
    assert results.failed == 0 and results.attempted > 0
