"""From scored groups to a batch with columns of numbers per token; the policy loss on it.

Shape letters: N sampled tokens of a (micro-)batch; R rows, one for each episode and trained seat.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Advantages, Counts, OnlineAlgorithm, Tokens
from posttrain.algorithms.inputs import Columns, Context, TeacherDistributions, columns_of, declared, flat, trained
from posttrain.algorithms.rollout import Rollout
from posttrain.data.packing import Example, PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.objectives.off_policy import importance_weights
from posttrain.objectives.shaping import adaptive_length_penalty
from posttrain.training.learner import CRITIC, POLICY, TEACHER, Batch, Column, Learner, Loss, Models, Share
from posttrain.training.teacher import ONE_TEACHER, Teachers, teacher_divergence
from posttrain.types import Group, Trajectory

NOTHING = Context()

# columns that an algorithm's advantages have for its loss
OF_ADVANTAGES = tuple(name for name in Advantages._fields if name in Tokens._fields and name != "advantages_N")


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


def taught_by(teachers: Teachers, groups: Sequence[Group]) -> list[tuple[str, Example]]:
    """Of each branch the part that teaches it, and what this part reads."""
    return [read for group in groups for read in teachers.reads(group, examples_in([group]))]


def teacher_logprobs(
    groups: Sequence[Group], learner: Learner, teachers: Teachers = ONE_TEACHER, *, temperature: float = 1.0
) -> Column:
    """Of each branch the logprobs of its sampled tokens by the teacher of its row, behind the prompt that this sees."""
    taught = taught_by(teachers, groups)
    found: dict[int, Sequence[float]] = {}
    for part in dict.fromkeys(part for part, _ in taught):
        numbers = [number for number, (each, _) in enumerate(taught) if each == part]
        said = learner.logprobs([taught[number][1] for number in numbers], part, temperature=temperature)
        found |= zip(numbers, said, strict=True)
    return [found[number] for number in range(len(taught))]


def context_of(learner: Learner, *, temperature: float = 1.0, teachers: Teachers = ONE_TEACHER, **more: Any) -> Context:
    """What a learner says of samples at this temperature, for the inputs of an algorithm; `more` as in `Context`."""

    def logprobs(groups: Sequence[Group], model: str) -> Column:
        if model == TEACHER:
            return teacher_logprobs(groups, learner, teachers, temperature=temperature)
        return learner.logprobs(examples_in(groups), model, temperature=temperature)

    def values(groups: Sequence[Group], part: str = CRITIC) -> Column:
        return learner.values(examples_in(groups), *([part] if part != CRITIC else []))

    return Context(logprobs=logprobs, taught=partial(taught_by, teachers), values=values, **more)


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
    """Compute the advantage of every token, and leave out groups without gradient; `seed` and `key` as in `Batch`.

    Each branch of a row is a separate example. The batch has the columns `sampler_logprobs` and `length` (sampled
    tokens of the row, over all its branches), `reference_logprobs` and those of models beside the policy, such as a
    critic's `values`, and what its advantages have for the loss (`Advantages.columns`), as far as the algorithm has
    them; its scalar `kl` is the mean KL of the rows from the
    reference in nats, where there is one. `sampled` has the columns of the inputs that sample, `context` makes those of
    the others. A row has at most `longest` tokens.
    """
    if not groups:
        return Batch([], Counts(0, 0, longest), seed=seed, key=key), {"groups/kept": 0}
    of_others = columns_of(algorithm.inputs, groups, context, samples=False)
    rollout = Rollout.of({**rows_of(groups), **(sampled or {}), **of_others}, longest)
    found, models = algorithm.advantages(rollout), trained(algorithm)
    columns = {
        "sampler_logprobs": rollout.sampler_N,
        "length": rollout.per_token(rollout.lengths_R),
        "reference_logprobs": rollout.reference_N,
        **{name.removesuffix("_N"): rollout.columns[name] for need in models.values() for name in need.columns},
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
    of_branches = [name for need in algorithm.inputs for name in need.columns if name.endswith("_B")]
    units = {name.removesuffix("_B"): rollout.more[name] for name in of_branches}
    batch = Batch(examples_in(groups), counts, tokens=tokens, units=units, scalars=kl, seed=seed, key=key)
    everything = models or not (algorithm.silent_at_zero and fast_paths.on("skipped groups"))
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


@dataclass(frozen=True)
class PolicyLoss(Loss[LanguageModel]):
    """The loss of an online algorithm on a batch of `policy_batch`.

    The ratio's denominator is the policy before the batch's first update, as the learner computes it: on the first
    update it equals the numerator, so the ratio is exactly 1. Its difference from the sampler's logprobs is logged as
    `logprob_gap`, which detects a mismatch between engine and learner.

    With an adapter's dropout on (`Batch.seed`), all updates on the batch use the same dropout mask, and the denominator
    is the policy under that mask: the ratio is still 1 on the first update, and later reflects only weight changes.
    Sampling has no dropout, so `logprob_gap` and the importance weights compare the sampler with the policy without
    dropout, which takes one more forward pass.

    With a `tis_cap` each token's advantage is weighted by the policy before the first update over the sampler
    (`objectives.off_policy.importance_weights`), which corrects the mismatch between engine and policy (Yao et al.
    2025, "Your efficient RL framework secretly brings you off-policy RL training"). KL and NLL terms are not weighted.
    """

    algorithm: OnlineAlgorithm
    temperature: float = 1.0  # of sampling
    tis_cap: float = 0.0  # the greatest weight that is not outside; 0: none is weighted
    importance: str = "truncated"  # what a weight outside is, or masked
    importance_level: str = "auto"  # token, product or mean; auto is token, and product where the ratio is a sequence's
    importance_floor: float = 0.0  # the least weight that is not outside

    reaches: ClassVar[tuple[str, ...]] = (POLICY, CRITIC)
    extremes: ClassVar[tuple[str, ...]] = ("ratio", "logprob_gap", "importance")

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        model, algorithm = parts.model, self.algorithm
        states = model.learned_states(row)
        found = model.logprobs_at(states, row, self.temperature, entropy_gradient=algorithm.needs_entropy)
        old_N = parts.keep("old", row, found.logprobs.detach)
        trainer_N = parts.keep("undropped", row, lambda: self._undropped(model, row)) if model.drops else old_N

        column, present = partial(batch.column, row=row, like=old_N), partial(batch.present, row=row, like=old_N)
        branch_N = torch.tensor(row.rows, dtype=torch.long, device=old_N.device)
        gap_N = trainer_N - present("sampler_logprobs")
        advantages_N = present("advantages")
        per_token = {"entropy": found.entropy, "logprob_gap": gap_N.abs()}
        if self.tis_cap:
            level = "product" if algorithm.sequence_ratio else "token"
            weight_N, outside_N, log_N = importance_weights(
                gap_N,
                branch_N,
                level=level if self.importance_level == "auto" else self.importance_level,
                masked=self.importance == "masked",
                highest=self.tis_cap,
                lowest=self.importance_floor,
            )
            per_token |= {"importance": weight_N, "importance_capped": outside_N, "sampler_kl": -gap_N}
            per_token |= by_length(log_N.abs(), present("length"), batch.tokens["length"])
            advantages_N = advantages_N * weight_N
        critic = parts.beside.get(CRITIC)
        tokens = Tokens(
            found.logprobs,
            old_N,
            advantages_N,
            branch_N,
            reference_N=column("reference_logprobs"),
            entropy_N=found.entropy,
            values_N=None if critic is None else critic.values(row, states),
            old_values_N=column("values"),
            sampler_N=present("sampler_logprobs"),
            divergence_N=self._divergence(states, row, batch, parts),
            **{name: column(name.removesuffix("_N")) for name in OF_ADVANTAGES},
        )
        loss_N, told = algorithm.loss(tokens)
        length_N = batch.present("length", row, branch_N)
        return Share(algorithm.reduce(loss_N, length_N, batch.counts), per_token | dict(told))

    def _divergence(self, states: Tensor, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Tensor | None:
        """From the teachers' distributions, where the algorithm compares with these."""
        need = declared(self.algorithm, TeacherDistributions)
        return None if need is None else teacher_divergence(need, states, row, batch, parts, self.temperature)

    @torch.no_grad()
    def _undropped(self, model: LanguageModel, row: PackedRow) -> Tensor:
        """The policy's logprobs of the row without dropout, as in sampling."""
        with model.dropping(None):
            return model.logprobs(row, self.temperature).logprobs


def by_length(log_N: Tensor, length_N: Tensor, lengths: Column) -> dict[str, Tensor]:
    """Logs of importance weights of short rows and of rows above the mean length, to see whether they drift with it."""
    long_N = length_N > fmean(length for example in lengths for length in example)
    return {"log_importance/short": log_N[~long_N], "log_importance/long": log_N[long_N]}
