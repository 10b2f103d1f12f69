"""From scored groups to a training batch: examples, and columns of numbers per token.

Shape letters: N sampled tokens of a batch; R rows, one for each episode and trained seat; G rows of a group and seat.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import torch

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm
from posttrain.algorithms.inputs import Columns, Context, CriticValues, columns_of, declared, flat
from posttrain.algorithms.rollout import Rollout
from posttrain.data.packing import Example
from posttrain.errors import UserError
from posttrain.objectives.shaping import adaptive_length_penalty
from posttrain.training.learner import TEACHER, Batch, Column, Learner
from posttrain.training.teacher import Teachers
from posttrain.types import Group, Trajectory

NOTHING = Context()

ONE_TEACHER = Teachers({"": TEACHER})


def example_of(branch: Trajectory) -> Example:
    """The tokens of a branch exactly as they were sampled; its first context is shared within its group."""
    prompt = branch.turns[0].context_ids
    shown = [(turn, [0.0] * len(turn.context_ids)) for turn in branch.turns]
    own = tuple(t for turn, zeros in shown for t in (*zeros, *[turn.temperature] * len(turn.token_ids)))[len(prompt) :]
    return Example(prompt, branch.token_ids[len(prompt) :], branch.sampled[len(prompt) :], own if any(own) else ())


def branches_in(groups: Sequence[Group]) -> list[Trajectory]:
    """The branches of all rows of groups, in order."""
    return [branch for group in groups for row in group.rows for branch in row.trajectory.branches]


def examples_in(groups: Sequence[Group]) -> list[Example]:
    """An example of each branch, in order."""
    return [example_of(branch) for branch in branches_in(groups)]


def teacher_logprobs(
    groups: Sequence[Group], learner: Learner, teachers: Teachers = ONE_TEACHER, *, temperature: float = 1.0
) -> Column:
    """Of each branch the logprobs of its sampled tokens by the teacher of its row, behind the prompt that this sees.

    Of a branch the tokens of the task's prompt are replaced, and all that follows stays.

    Raises:
        UserError: teachers have a prompt of their own, and an environment showed a seat another than the task's.
    """
    of_part: dict[str, list[int]] = {}
    examples: list[Example] = []
    for group in groups:
        own, its = teachers.prefix(group.task) if teachers.prompt else ((), ())
        for example in examples_in([group]):
            if example.prefix[: len(own)] != own:
                raise UserError(
                    "`teacher_prompt` stands in place of the task's prompt, and the environment began an episode with "
                    "other messages; leave it out"
                )
            of_part.setdefault(teachers.part_of(group.task), []).append(len(examples))
            examples.append(replace(example, prefix=(*its, *example.prefix[len(own) :])))
    found: dict[int, Sequence[float]] = {}
    for part, numbers in of_part.items():
        said = learner.logprobs([examples[number] for number in numbers], part, temperature=temperature)
        found |= zip(numbers, said, strict=True)
    return [found[number] for number in range(len(examples))]


def context_of(learner: Learner, *, temperature: float = 1.0, teachers: Teachers = ONE_TEACHER, **more: Any) -> Context:
    """What a learner says of samples at this temperature, for the inputs of an algorithm; `more` as in `Context`."""

    def logprobs(groups: Sequence[Group], model: str) -> Column:
        if model == TEACHER:
            return teacher_logprobs(groups, learner, teachers, temperature=temperature)
        return learner.logprobs(examples_in(groups), model, temperature=temperature)

    return Context(logprobs=logprobs, values=lambda groups: learner.values(examples_in(groups)), **more)


def shortened(group: Group, weight: float, longest: int) -> Group:
    """Subtract `weight` times `adaptive_length_penalty` from a group's rewards; `longest` as in `policy_batch`."""
    if not weight:
        return group
    rewards_R = torch.tensor(group.rewards, dtype=torch.float64)
    lengths_R = torch.tensor([len(row.trajectory.logprobs) for row in group.rows])
    for seat in group.by_seat:
        own_R = torch.tensor([row.seat == seat for row in group.rows])
        rewards_R[own_R] -= weight * adaptive_length_penalty(rewards_R[own_R], lengths_R[own_R], longest)
    rows = zip(group.rows, rewards_R.tolist(), strict=True)
    return replace(group, rows=tuple(replace(row, reward=reward) for row, reward in rows))


def rows_of(groups: Sequence[Group]) -> dict[str, Any]:
    """The row columns of `Rollout`: rewards, groups, seats and the row of each token."""
    rows = [row for group in groups for row in group.rows]
    seats = {name: number for number, name in enumerate(dict.fromkeys(row.seat for row in rows))}
    sizes = torch.tensor([len(group.rows) for group in groups])
    logprobs = [row.trajectory.logprobs for row in rows]
    return {
        "rewards_R": torch.tensor([row.reward for row in rows], dtype=torch.float64),
        "group_R": torch.repeat_interleave(torch.arange(len(groups)), sizes),
        "seat_R": torch.tensor([seats[row.seat] for row in rows]),
        "row_N": torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(each) for each in logprobs])),
        "sampler_N": flat(logprobs),
    }


def policy_batch(
    groups: Sequence[Group],
    algorithm: OnlineAlgorithm,
    sampled: Columns | None = None,
    *,
    longest: int = 0,
    context: Context = NOTHING,
    seed: int | None = None,
    key: str = "",
) -> tuple[Batch, dict[str, float]]:
    """Compute the advantage of every token, and leave out groups without gradient.

    Each branch of a row is a separate example. The batch has the columns `sampler_logprobs` and `length` (sampled
    tokens of the row, over all its branches), those of `reference_logprobs` and `values` that the algorithm has, and
    what its advantages have for the loss (`Advantages.columns`); its scalar `kl` is the mean KL of the rows from the
    reference in nats, where there is one.

    Args:
        groups: of any size that the algorithm accepts. May be empty.
        algorithm: computes the advantages.
        sampled: columns of the algorithm's inputs that require sampling.
        longest: maximum tokens of a row.
        context: provides the columns of the other inputs.
        seed: as in `Batch`.
        key: as in `Batch`.
    """
    if not groups:
        return Batch([], Counts(0, 0, longest), seed=seed, key=key), {"groups/kept": 0}
    of_others = columns_of(algorithm.inputs, groups, context, samples=False)
    rollout = Rollout.of({**rows_of(groups), **(sampled or {}), **of_others}, longest)
    found = algorithm.advantages(rollout)
    columns = {
        "sampler_logprobs": rollout.sampler_N,
        "length": rollout.per_token(rollout.lengths_R),
        "reference_logprobs": rollout.reference_N,
        "values": rollout.values_N if declared(algorithm, CriticValues) else None,
        **{name.removesuffix("_N"): numbers_N for name, numbers_N in found.columns.items()},
    }
    lengths = [len(branch.logprobs) for branch in branches_in(groups)]
    tokens = {
        name: [tuple(part.tolist()) for part in numbers_N.split(lengths)]
        for name, numbers_N in columns.items()
        if numbers_N is not None
    }
    rows = len(rollout.rewards_R)
    kl = {} if rollout.reference_N is None else {"kl": rollout.kl_N().sum().item() / rows}
    counts = Counts(rows, sum(lengths), longest)
    batch = Batch(examples_in(groups), counts, tokens=tokens, scalars=kl, seed=seed, key=key)
    everything = not (algorithm.silent_at_zero and fast_paths.on("skipped groups"))
    numbers = count()
    members = [[next(numbers) for row in group.rows for _ in row.trajectory.branches] for group in groups]
    taken = [group for group in members if everything or any(any(tokens["advantages"][i]) for i in group)]
    metrics = {"groups/kept": len(taken), **{f"groups/{key}": value for key, value in found.metrics.items()}}
    return batch.chosen(list(chain.from_iterable(taken))), metrics


def distance(groups: Sequence[Group], logprobs: Column) -> float:
    """Monte Carlo estimate of the KL of the sampling policy to another model, in nats per row.

        KL = E_{y ~ pi} sum_t [ log pi(y_t | y_<t) - log ref(y_t | y_<t) ]

    `logprobs` are that model's, of the sampled tokens of each branch. The samples are drawn at temperature 1. The
    estimate may be negative.
    """
    behind = zip(branches_in(groups), logprobs, strict=True)
    gone = sum(sum(branch.logprobs) - sum(before) for branch, before in behind)
    return gone / sum(len(group.rows) for group in groups)
