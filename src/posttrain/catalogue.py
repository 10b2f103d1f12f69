"""Reference documentation of each algorithm, from its own file."""

import dataclasses
import inspect
import textwrap
from typing import NamedTuple

from posttrain.algorithms import ALGORITHMS, COMMANDS, get
from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, SupervisedAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import (
    PretrainingNLL,
    ProverValues,
    ReferenceDivergence,
    ReferenceLogprobs,
    TeacherLogprobs,
    declared,
    trained,
)
from posttrain.options.hyperparameters import field_docstrings
from posttrain.parsing import flag

DATA = {"online": "gym:chain_sum", "preference": "pairs.jsonl", "supervised": "demonstrations.jsonl"}
"""An example dataset for each family."""
NAMED = (
    (TeacherLogprobs, "teacher", "OWNER/NAME"),
    (ProverValues, "prover", "OWNER/NAME"),
    (PretrainingNLL, "pretraining_dataset", "texts.jsonl"),
)
"""Inputs that a command-line option provides, with an example value."""


CHANGES = {
    "advantage": "how completions are compared",
    "ratio": "how far the policy may move from the samples of a batch",
    "regulariser": "what holds back the policy besides",
    "correction": "what makes up for another sampler: also --tis-cap and --importance, with any other algorithm of rl",
    "pairs": "how a better and a worse response are compared",
    "demonstrations": "how given responses are imitated",
}
"""What algorithms change, in the order in which `posttrain algorithms` lists them."""


class CatalogueEntry(NamedTuple):
    """One line of `posttrain algorithms`."""

    name: str
    family: str
    changes: str  # one of `CHANGES`
    paper: str  # arXiv identifier, or author and year
    needs: tuple[str, ...]  # other than the policy, with default hyperparameters
    models: int  # networks in memory: all weights trained; with an adapter, reference and trunk are the policy's own
    forwards: int  # forward passes over the batch per update, sampling excluded; one has a backward pass


def describe(name: str) -> CatalogueEntry:
    """Summarise one algorithm in a row; raises `UserError` for an unknown name.

    Example:
        >>> describe("grpo")[4:]
        (('reward', 'groups', 'reference'), 2, 2)
    """
    algorithm = get(name)()
    online = isinstance(algorithm, OnlineAlgorithm)
    needs = (
        ("reward", online),
        ("pairs", isinstance(algorithm, PreferenceAlgorithm)),
        ("demonstrations", isinstance(algorithm, SupervisedAlgorithm)),
        ("good and bad responses", isinstance(algorithm, UnpairedAlgorithm)),
        ("groups", online and algorithm.least_group > 1),
        *((need.title, True) for need in (*algorithm.inputs, *getattr(algorithm, "extra_losses", ()))),
    )
    forwards = 1 + sum(need.passes for need in algorithm.inputs)
    if isinstance(algorithm, UnpairedAlgorithm):
        forwards *= 2  # responses to other prompts, for the KL estimate
    there = tuple(need for need, here in needs if here)
    # a pairwise algorithm may need only reference logprobs, which are precomputed before training
    remembered = isinstance(algorithm, PreferenceAlgorithm) and declared(algorithm, ReferenceDivergence) is None
    models = 1 + (declared(algorithm, ReferenceLogprobs) is not None and not remembered)
    models += declared(algorithm, TeacherLogprobs) is not None or declared(algorithm, ProverValues) is not None
    models += sum(not need.head for need in trained(algorithm).values())
    changes = {"preference": "pairs", "supervised": "demonstrations"}.get(algorithm.family, "")
    changes = changes or getattr(algorithm, "changes", "advantage")
    return CatalogueEntry(name, algorithm.family, changes, algorithm.paper, there, models, forwards)


def rows() -> list[CatalogueEntry]:
    """Describe every registered algorithm, by name."""
    return [describe(name) for name in sorted(ALGORITHMS)]


def explain(name: str) -> str:
    """Document one algorithm: its module docstring, its hyperparameters with their defaults, the command."""
    algorithm = get(name)()
    texts = field_docstrings(type(algorithm))
    lines = [inspect.getdoc(inspect.getmodule(type(algorithm))) or "", "", "Hyperparameters and their defaults:", ""]
    for field in dataclasses.fields(algorithm):
        lines.append(f"    {flag(field.name)} {field.default}")
        lines += textwrap.wrap(texts.get(field.name, ""), 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    command = f"posttrain {COMMANDS[algorithm.family]} --algorithm {name} --dataset {DATA[algorithm.family]}"
    command += "".join(f" {flag(option)} {example}" for kind, option, example in NAMED if declared(algorithm, kind))
    lines += ["", "Run it:", "", f"    {command}"]
    if isinstance(algorithm, PreferenceAlgorithm):
        lines += ["", "or on pairs of the policy's own completions:", ""]
        lines += [f"    posttrain online-preference --algorithm {name} --dataset {DATA['online']}"]
    return "\n".join([*lines, ""])
