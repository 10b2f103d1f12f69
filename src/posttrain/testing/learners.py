"""The conformance kit of learners, wherever they compute: one function per rule, which returns the violations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.ppo import PPO
from posttrain.data.packing import Example, PackedRow
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.testing.conformance import require
from posttrain.training.beside import BesideLoss
from posttrain.training.learner import CRITIC, POLICY, REFERENCE, TEACHER, Batch, Column, Learner, Models, Share
from posttrain.training.policy import PolicyLoss
from posttrain.training.supervised import NLL, supervised_batch

Make = Callable[[int], Learner]
"""A fresh learner whose micro-batches have so many tokens."""

PROMPTS = ((5, 9), (20, 7, 31))
SAID = ((4, 8, 1), (11, 1), (30, 31, 32, 33, 1), (6, 6, 1))
EXAMPLES = [Example(prompt, said, (True,) * len(said)) for prompt in PROMPTS for said in SAID]
COUNTS = Counts(len(EXAMPLES), sum(len(example.continuation) for example in EXAMPLES))
CLOSE = 1e-5  # relative, of sums in another order in float32


@dataclass(frozen=True)
class Infinite:
    """A loss that is not finite in one row."""

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """Infinite where the first example is."""
        loss = -parts.model.logprobs(row).logprobs.sum()
        return Share(loss * (math.inf if 0 in row.examples else 1.0), {})


@dataclass(frozen=True)
class Interrupted:
    """A loss that raises in its last row, as a signal may."""

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As `NLL`, but for the last example's row."""
        if len(EXAMPLES) - 1 in row.examples:
            raise KeyboardInterrupt
        return NLL().of_row(row, batch, parts)


def policy_columns(learner: Learner) -> dict[str, Column]:
    """What a policy's loss with a critic needs."""
    advantages = [tuple(0.5 - 0.3 * (i % 4) for _ in example.continuation) for i, example in enumerate(EXAMPLES)]
    return {
        "advantages": advantages,
        "returns": [tuple(0.1 * i for _ in example.continuation) for i, example in enumerate(EXAMPLES)],
        "length": [(len(example.continuation),) * len(example.continuation) for example in EXAMPLES],
        "sampler_logprobs": learner.logprobs(EXAMPLES),
        "reference_logprobs": learner.logprobs(EXAMPLES, REFERENCE),
        "values": learner.values(EXAMPLES),
    }


def check_learner(make: Make, folder: Path | None = None) -> None:
    """Check that the learners that `make` makes conform.

    Args:
        make: a fresh learner, each time of the same weights, whose micro-batches have so many tokens. It has a critic,
            and a reference and a teacher that are other models than the policy; the reference can be renewed by `copy`.
            A tiny model with random weights will do: its vocabulary must have the token ids in `EXAMPLES`, and a
            learning rate of 0.01 must move it.
        folder: an empty one, where a checkpoint is written; a temporary one by default.

    Raises:
        ConformanceError: one line for each rule that is broken.
    """
    with TemporaryDirectory() as temporary:
        there = folder or Path(temporary)
        require(fault for check in CHECKS for fault in check(make, there))


def _near(one: float, other: float, relative: float = CLOSE) -> bool:
    return math.isclose(one, other, rel_tol=relative, abs_tol=1e-7)


def _flat(column: Column) -> list[float]:
    return [value for values in column for value in values]


def _apart(one: Column, other: Column) -> float:
    return max(abs(a - b) for a, b in zip(_flat(one), _flat(other), strict=True))


def how_a_batch_is_cut_changes_nothing(make: Make, folder: Path) -> list[str]:
    """Loss, metrics, norms and the weights after a step, of one large micro-batch and of many small ones."""
    found, after = [], []
    for tokens in (1000, 9):
        learner = make(tokens)
        batch = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner), key="1")
        loss = PolicyLoss(PPO(kl_coefficient=0.0))
        metrics = learner.forward_backward(batch, loss) | learner.optim_step({POLICY: 1e-3, CRITIC: 1e-2})
        found.append(metrics | learner.forward_backward(batch, loss))
        after.append(learner.logprobs(EXAMPLES))
    one, other = found
    if one.keys() != other.keys():
        return [f"cut into micro-batches, a batch has other metrics: {sorted(one.keys() ^ other.keys())}"]
    wrong = [
        f"{name}: {one.get(name)} and {other.get(name)}" for name in one if not _near(one[name], other[name], 1e-3)
    ]
    faults = [f"cut into micro-batches, a batch has other metrics: {'; '.join(wrong)}"] if wrong else []
    if _apart(*after) > 1e-3:
        faults.append(f"cut into micro-batches, a step leads to logprobs {_apart(*after):.1e} apart")
    return faults


def several_calls_are_one_gradient(make: Make, folder: Path) -> list[str]:
    """The halves of a batch, with the counts of the whole, add up to it."""
    whole, halves = make(1000), make(1000)
    batch = supervised_batch(EXAMPLES)
    total = whole.forward_backward(batch, NLL())["loss"]
    parts = sum(
        halves.forward_backward(replace(batch, examples=half), NLL())["loss"] for half in (EXAMPLES[:3], EXAMPLES[3:])
    )
    norms = [learner.optim_step({POLICY: 1e-3})["grad_norm"] for learner in (whole, halves)]
    faults = [] if _near(total, parts) else [f"the losses of two halves add up to {parts}, the whole has {total}"]
    return faults if _near(*norms) else [*faults, f"two halves have a gradient of {norms[1]}, the whole of {norms[0]}"]


def forward_is_forward_backward_without_gradients(make: Make, folder: Path) -> list[str]:
    """The same numbers, and a step after it alone changes nothing."""
    learner, batch = make(20), supervised_batch(EXAMPLES)
    before = learner.logprobs(EXAMPLES)
    seen = learner.forward(batch, NLL())
    if learner.optim_step({POLICY: 0.1})["grad_norm"] != 0.0 or _apart(before, learner.logprobs(EXAMPLES)):
        return ["forward leaves a gradient behind"]
    found = learner.forward_backward(batch, NLL())
    return [] if seen == found else [f"forward has {seen}, forward_backward {found}"]


def the_loss_is_minus_the_mean_of_the_logprobs(make: Make, folder: Path) -> list[str]:
    """`logprobs` and `NLL` say the same; a temperature is one."""
    learner = make(15)
    said = _flat(learner.logprobs(EXAMPLES))
    loss = learner.forward(supervised_batch(EXAMPLES), NLL())["loss"]
    faults = [] if _near(loss, -sum(said) / len(said)) else [f"the loss is {loss}, the logprobs say {-sum(said)}"]
    hot = _flat(learner.logprobs(EXAMPLES, temperature=1e6))
    even = all(_near(value, hot[0], 1e-3) for value in hot) and hot[0] < -math.log(max(map(max, SAID)))
    return faults if even else [*faults, "at a high temperature tokens are not all equally likely"]


def old_logprobs_are_kept_by_key(make: Make, folder: Path) -> list[str]:
    """Ratios begin at 1, and are measured against the first pass of the same key, whatever is asked between.

    As where text without a key is learned from before each step (ppo-ptx).
    """
    learner, loss = make(9), PolicyLoss(GRPO(kl_coefficient=0.0))
    batch = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner), key="1")
    first = learner.forward_backward(batch, loss)
    learner.forward_backward(supervised_batch(EXAMPLES), NLL())
    learner.optim_step({POLICY: 1e-2})
    seen = learner.forward(replace(batch, key=""), loss)
    learner.logprobs(EXAMPLES)
    second = learner.forward_backward(batch, loss)
    learner.optim_step({POLICY: 1e-2})
    other = learner.forward_backward(replace(batch, key="2"), loss)
    learner.optim_step({POLICY: 1e-2})
    unnamed = [learner.forward_backward(replace(batch, key=""), loss) for _ in range(2)]
    faults = [] if first["ratio/max"] == 1.0 else ["the ratio of a first update is not 1"]
    if second["ratio/max"] <= 1.0:
        faults.append("the second update of a batch is not measured against the policy before the first")
    if any(found["ratio/max"] != 1.0 for found in (seen, other, *unnamed)):
        faults.append("another batch is measured against the policy before an earlier one")
    return faults


def rates_are_of_each_part(make: Make, folder: Path) -> list[str]:
    """A part that is not named stays; a critic that learns alone leaves the policy without a gradient."""
    learner = make(1000)
    batch = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner))
    before = learner.logprobs(EXAMPLES), learner.values(EXAMPLES)
    learner.forward_backward(batch, BesideLoss(PPO()))
    norms = learner.optim_step({CRITIC: 1e-2})
    after = learner.logprobs(EXAMPLES), learner.values(EXAMPLES)
    faults = [] if set(norms) == {"critic_grad_norm"} else [f"a step of the critic tells {sorted(norms)}"]
    if _apart(before[0], after[0]) or not _apart(before[1], after[1]):
        faults.append("a critic that learns alone moves the policy, or not itself")
    if learner.optim_step({POLICY: 0.1})["grad_norm"]:
        faults.append("a critic that learns alone leaves the policy a gradient")
    return faults


def what_is_not_finite_touches_nothing(make: Make, folder: Path) -> list[str]:
    """A loss or a gradient that is not finite raises; weights stay, what was collected of any part is forgotten."""
    learner = make(9)
    before = learner.logprobs(EXAMPLES)
    faults = []
    batch = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner))
    learner.forward_backward(batch, PolicyLoss(PPO()))
    try:
        learner.forward_backward(supervised_batch(EXAMPLES), Infinite())
        faults.append("an infinite loss raises nothing")
    except TrainingError:
        pass
    try:
        left = list(learner.optim_step({POLICY: 0.1, CRITIC: 0.1}).values())
    except TrainingError as error:
        return [*faults, f"after an infinite loss a gradient is left: {error}"]
    if any(left):
        faults.append(f"after an infinite loss gradients of {left} are left")
    try:
        learner.forward_backward(batch, Interrupted())
        faults.append("a loss that raises raises nothing")
    except KeyboardInterrupt:
        pass
    if norm := learner.optim_step({POLICY: 0.1})["grad_norm"]:
        faults.append(f"after a loss that raises a gradient of {norm} is left")
    learner.forward_backward(batch, BesideLoss(PPO()))
    learner.forward_backward(supervised_batch(EXAMPLES), NLL(weight=1e38))
    learner.forward_backward(supervised_batch(EXAMPLES), NLL(weight=1e38))
    try:
        learner.optim_step({POLICY: 0.1})
        faults.append("an infinite gradient raises nothing")
    except TrainingError:
        pass
    if norm := learner.optim_step({CRITIC: 0.1})["critic_grad_norm"]:
        faults.append(f"after an infinite gradient of the policy one of {norm} is left to the critic")
    return [*faults, "what is not finite moves weights"] if _apart(before, learner.logprobs(EXAMPLES)) else faults


def a_batch_without_examples_is_a_step_of_nothing(make: Make, folder: Path) -> list[str]:
    """As where every group of a step is lost."""
    learner = make(1000)
    learner.forward_backward(supervised_batch(EXAMPLES), NLL())
    learner.optim_step({POLICY: 1e-2})
    before = learner.logprobs(EXAMPLES)
    found = learner.forward_backward(Batch([], Counts(0, 0)), PolicyLoss(GRPO(kl_coefficient=0.0)))
    norms = learner.optim_step({POLICY: 1e-2})
    moved = _apart(before, learner.logprobs(EXAMPLES))
    right = found["loss"] == norms["grad_norm"] == moved == 0.0
    return [] if right else [f"a batch without examples has {found | norms}, and moves logprobs by {moved}"]


def a_copy_renews_the_reference(make: Make, folder: Path) -> list[str]:
    """And the policy's later updates leave it alone."""
    learner = make(1000)
    faults = [] if _apart(learner.logprobs(EXAMPLES), learner.logprobs(EXAMPLES, REFERENCE)) else ["both are one model"]
    learner.copy(POLICY, REFERENCE)
    policy = learner.logprobs(EXAMPLES)
    if _apart(policy, learner.logprobs(EXAMPLES, REFERENCE)) > CLOSE:
        faults.append("a reference that was renewed is not the policy")
    learner.forward_backward(supervised_batch(EXAMPLES), NLL())
    learner.optim_step({POLICY: 1e-2})
    if _apart(policy, learner.logprobs(EXAMPLES, REFERENCE)) > CLOSE:
        faults.append("a reference that was renewed moves with the policy")
    return faults


def a_restored_learner_goes_on_as_if_nothing_had_been(make: Make, folder: Path) -> list[str]:
    """Weights, moments of the optimisers, critic and a reference that was renewed: to the last bit."""

    def step(learner: Learner, examples: Sequence[Example], key: str) -> dict[str, float]:
        tokens = {name: column[: len(examples)] for name, column in policy_columns(learner).items()}
        batch = Batch(examples, COUNTS, tokens=tokens, key=key)
        metrics = learner.forward_backward(batch, PolicyLoss(PPO(kl_coefficient=0.1)))
        return metrics | learner.optim_step({POLICY: 1e-2, CRITIC: 1e-2})

    whole, again = make(20), make(20)
    step(whole, EXAMPLES, "1")
    whole.copy(POLICY, REFERENCE)
    step(whole, EXAMPLES[:5], "2")
    there = folder / "checkpoint"
    there.mkdir()
    whole.save(there)
    expected = [step(whole, EXAMPLES, "3"), whole.values(EXAMPLES), whole.logprobs(EXAMPLES, REFERENCE)]
    step(again, EXAMPLES, "3")
    again.forward_backward(supervised_batch(EXAMPLES), NLL())  # of other weights, as what is kept by key
    again.restore(there)
    found = [step(again, EXAMPLES, "3"), again.values(EXAMPLES), again.logprobs(EXAMPLES, REFERENCE)]
    return [] if found == expected else ["a learner that was restored goes on otherwise than one that was not"]


def a_teacher_stays_and_reads_alike_in_every_cut(make: Make, folder: Path) -> list[str]:
    """It is neither the policy nor the reference; nothing that those do moves it; sequences may be packed or apart."""
    learner = make(1000)
    before = learner.logprobs(EXAMPLES, TEACHER, temperature=0.7)
    faults = [
        f"the teacher says what the {other} says"
        for other in (POLICY, REFERENCE)
        if _apart(before, learner.logprobs(EXAMPLES, other, temperature=0.7)) < 1e-2
    ]
    if _apart(before, make(9).logprobs(EXAMPLES, TEACHER, temperature=0.7)) > 1e-4:
        faults.append("cut into micro-batches, sequences have other logprobs of the teacher")
    learner.forward_backward(supervised_batch(EXAMPLES), NLL())
    learner.optim_step({POLICY: 0.1})
    learner.copy(POLICY, REFERENCE)
    if _apart(before, learner.logprobs(EXAMPLES, TEACHER, temperature=0.7)):
        faults.append("an update of the policy or the reference moves the teacher")
    return faults


def dropout_is_a_function_of_the_seed(make: Make, folder: Path) -> list[str]:
    """Where there is an adapter with dropout: one seed, one loss; none in any other verb."""
    learner, batch = make(9), supervised_batch(EXAMPLES)
    seeds = [learner.forward_backward(replace(batch, seed=seed), NLL())["loss"] for seed in (1, 1, 2, None)]
    still = learner.forward(batch, NLL())["loss"]
    drops = seeds[0] != seeds[3]
    right = seeds[0] == seeds[1] and seeds[3] == still and (not drops or seeds[0] != seeds[2])
    return [] if right else [f"by seeds 1, 1, 2 and none the loss is {seeds}, without gradients {still}"]


CHECKS = (
    how_a_batch_is_cut_changes_nothing,
    several_calls_are_one_gradient,
    forward_is_forward_backward_without_gradients,
    the_loss_is_minus_the_mean_of_the_logprobs,
    old_logprobs_are_kept_by_key,
    rates_are_of_each_part,
    what_is_not_finite_touches_nothing,
    a_batch_without_examples_is_a_step_of_nothing,
    a_copy_renews_the_reference,
    a_restored_learner_goes_on_as_if_nothing_had_been,
    a_teacher_stays_and_reads_alike_in_every_cut,
    dropout_is_a_function_of_the_seed,
)
