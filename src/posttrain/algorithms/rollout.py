"""A batch of rollouts: the input from which an online algorithm computes advantages.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens, flat and without padding, row after row;
[P, G] P groups of G rows each; K rewards. Groups may differ in size, and a row may have no tokens.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from posttrain.objectives import kl, reduce
from posttrain.objectives.advantages import covariance
from posttrain.objectives.shaping import outcome_rewards
from posttrain.objectives.values import last_of_rows


class Rollout(NamedTuple):
    """The rows of a batch. The tokens of a row are those of all its turns, in order, in whatever branch."""

    rewards_R: Float[Tensor, "R"]
    group_R: Int[Tensor, "R"]  # which task's episodes a row belongs to
    row_N: Int[Tensor, "N"]  # which row each token belongs to, from 0
    longest: int = 0  # maximum tokens of a row; 0 for no limit
    sampler_N: Float[Tensor, "N"] | None = None  # logprobs at which the tokens were drawn
    reference_N: Float[Tensor, "N"] | None = None  # the reference policy's of the same
    greedy_R: Float[Tensor, "R"] | None = None  # reward of the row's seat in the greedy episode of its task
    kinds_R: tuple[str, ...] = ()  # the kind of each row's prompt
    values_N: Float[Tensor, "N"] | None = None  # the value of the state before the token (or before its step)
    step_N: Int[Tensor, "N"] | None = None  # which step of its row a token belongs to, for values of steps
    seat_R: Int[Tensor, "R"] | None = None  # which seat each row is of; None where there is one
    step_rewards_N: Float[Tensor, "N"] | None = None  # the part of its row's reward given at a token
    step_end_N: Bool[Tensor, "N"] | None = None  # the ends of rewarded steps, including those of reward 0
    teacher_N: Float[Tensor, "N"] | None = None  # a teacher's logprobs of the same tokens
    scores_RK: Float[Tensor, "R K"] | None = None  # of each reward before its weight; NaN where it does not apply
    weights_K: Float[Tensor, "K"] | None = None  # of the rewards
    baselines_R: Float[Tensor, "R"] | None = None  # the moving average of the return of the row's seat
    more: Mapping[str, Any] = MappingProxyType({})  # columns of inputs that an algorithm's own file defines, by name

    @classmethod
    def of(cls, columns: Mapping[str, Any], longest: int = 0) -> Self:
        """A batch of these columns by name: those that are no field are in `more`."""
        more = {name: column for name, column in columns.items() if name not in cls._fields}
        own = {name: column for name, column in columns.items() if name not in more}
        return cls(**own, longest=longest, more=more)

    @property
    def columns(self) -> dict[str, Any]:
        """All columns by name, those in `more` too; what `of` makes a batch of."""
        fields = self._asdict()
        return {name: fields[name] for name in fields if name not in ("longest", "more")} | dict(self.more)

    @property
    def lengths_R(self) -> Int[Tensor, "R"]:
        """Tokens of each row."""
        return torch.bincount(self.row_N, minlength=len(self.rewards_R))

    def per_token(self, values_R: Num[Tensor, "R"]) -> Num[Tensor, "N"]:
        """Broadcast one number of each row to all its tokens."""
        return values_R[self.row_N]

    def at_end(self, values_R: Float[Tensor, "R"]) -> Float[Tensor, "N"]:
        """Place one number of each row at its last token, which is in its last branch; 0 elsewhere."""
        return torch.where(last_of_rows(self.row_N), self.per_token(values_R), 0.0)

    @property
    def seats(self) -> list[int]:
        """The number of each row's seat, [R]; 0 where there is one seat."""
        plain: Any = torch.zeros_like(self.group_R) if self.seat_R is None else self.seat_R
        return plain.tolist()

    def groups(self) -> list[Int[Tensor, "P G"]]:
        """The numbers of the rows that are compared with each other: those of one task and seat.

        Groups of one size G are stacked to [P, G], in order; there is one such tensor for each size.
        """
        plain: Any = self.group_R
        members = dict[tuple[int, int], list[int]]()
        for row, key in enumerate(zip(plain.tolist(), self.seats, strict=True)):
            members.setdefault(key, []).append(row)
        by_size = dict[int, list[list[int]]]()
        for rows in members.values():
            by_size.setdefault(len(rows), []).append(rows)
        return [torch.tensor(rows, device=self.group_R.device) for rows in by_size.values()]

    def compare(self, values_R: Float[Tensor, "R"], of_groups: Callable[[Tensor], Tensor]) -> Float[Tensor, "R"]:
        """Apply a function of groups, [P, G] to [P, G], to the numbers of rows of the same task and the same seat.

        Example:
            >>> from posttrain.objectives.advantages import mean_centred
            >>> rewards_R, group_R = torch.tensor([1.0, 0.0, 3.0, 4.0, 5.0]), torch.tensor([0, 0, 1, 1, 1])
            >>> Rollout(rewards_R, group_R, torch.arange(5)).compare(rewards_R, mean_centred)
            tensor([ 0.5000, -0.5000, -1.0000,  0.0000,  1.0000])
        """
        found_R = torch.empty_like(values_R)
        for rows_PG in self.groups():
            found_R[rows_PG] = of_groups(values_R[rows_PG])
        return found_R

    def per_group(
        self, values_R: Float[Tensor, "R"], of_groups: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "P"] | Bool[Tensor, "P"]:
        """Apply a function of groups, [P, G] to [P], in the same way: one number for each group, size by size."""
        return torch.cat([of_groups(values_R[rows_PG]) for rows_PG in self.groups()])

    def per_row(self, values_N: Float[Tensor, "N"]) -> Float[Tensor, "R"]:
        """The sum over the tokens of each row."""
        return reduce.sequence_sum(values_N, self.row_N, len(self.rewards_R))

    @property
    def outcome_R(self) -> Float[Tensor, "R"]:
        """Outcome reward of each row: its reward minus that of its steps."""
        return outcome_rewards(self.rewards_R, self._steps()[0], self.row_N)

    @property
    def steps(self) -> int:
        """Number of rewarded steps, over all rows."""
        return int(self._steps()[1].sum())

    @property
    def paid_N(self) -> Float[Tensor, "N"]:
        """Per-token rewards: a step's reward at the step's last token, the rest at the row's."""
        return self._steps()[0] + self.at_end(self.outcome_R)

    def compare_steps(self, of_groups: Callable[[Tensor], Tensor]) -> Float[Tensor, "N"]:
        """As `compare`, of the rewards of all steps of a group and seat, at the tokens that they end at; 0 elsewhere.

        A step without another in its group gets 0.

        Example:
            >>> from posttrain.objectives.advantages import mean_centred
            >>> rewards, end = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([False, True, True])
            >>> group_R, row_N = torch.tensor([0, 0]), torch.tensor([0, 0, 1])
            >>> batch = Rollout(torch.tensor([1.0, 0.0]), group_R, row_N, step_rewards_N=rewards, step_end_N=end)
            >>> batch.compare_steps(mean_centred)
            tensor([ 0.0000,  0.5000, -0.5000])
        """
        steps_N, end_N = self._steps()
        row_S = self.row_N[end_N]
        seat_S = torch.tensor(self.seats)[row_S]
        steps = Rollout(steps_N[end_N], self.group_R[row_S], torch.arange(len(row_S)), seat_R=seat_S)
        found_N = torch.zeros_like(steps_N)
        found_N[end_N] = steps.compare(
            steps.rewards_R, lambda of_PS: of_groups(of_PS) if of_PS.shape[-1] > 1 else torch.zeros_like(of_PS)
        )
        return found_N

    def _steps(self) -> tuple[Float[Tensor, "N"], Bool[Tensor, "N"]]:
        if self.step_rewards_N is None or self.step_end_N is None:
            raise ValueError("process rewards need step_rewards_N and step_end_N; one of them is None")
        return self.step_rewards_N, self.step_end_N

    def covariance_N(self, advantages_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Each token's share of the covariance of advantage and logprob; raises `ValueError` without logprobs."""
        if self.sampler_N is None:
            raise ValueError("a covariance needs the logprobs at which the tokens were drawn, sampler_N; got None")
        return covariance(advantages_N, self.sampler_N)

    def kl_N(self) -> Float[Tensor, "N"]:
        """The KL of each token from the reference, k1; raises `ValueError` without the reference's logprobs."""
        if self.sampler_N is None or self.reference_N is None:
            raise ValueError("a KL in the reward needs the reference's logprobs, reference_N; got None")
        return kl.k1(self.sampler_N, self.reference_N)
