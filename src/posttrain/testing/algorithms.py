"""The conformance kit of algorithms; here are the rules of online ones, those of the others in `preferences.py`.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens, flat and without padding.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.algorithms.algorithm import (
    ActorCritic,
    Advantages,
    Algorithm,
    Counts,
    OnlineAlgorithm,
    PreferenceAlgorithm,
    SupervisedAlgorithm,
    TokenLoss,
    Tokens,
    UnpairedAlgorithm,
)
from posttrain.algorithms.inputs import (
    CRITIC,
    CriticValues,
    Input,
    PromptKinds,
    StateValues,
    TeacherDistributions,
    declared,
    trained,
)
from posttrain.algorithms.rollout import Rollout
from posttrain.errors import described, place_in_user_code
from posttrain.testing.conformance import require
from posttrain.testing.gradients import apart, ill_formed, metric_faults, steep
from posttrain.testing.preferences import PREFERENCE

LONGEST = 6


def check_algorithm(algorithm: Algorithm, *, slopes: bool = True) -> None:
    """Check that an algorithm conforms: online, or of preferences, with its hyperparameters as they are.

    It is a frozen dataclass with the members of its family, and computes finite numbers of the right shapes from just
    the inputs that it declares, the same each time, without changing them; without one of them it raises. Then, of an
    online algorithm: neither the order of rows, nor what the seats of a task are called, nor a row without tokens
    disturbs the advantages; a batch cut into micro-batches has the same loss and gradient; at the first update a token
    of positive advantage becomes more likely, and the ratio is 1; a token of advantage 0 has no gradient where
    `silent_at_zero` says so; the entropy has a gradient only where `needs_entropy` says so; `critic_loss` trains the
    critic as `loss` does, and another model beside the policy has a loss of what it says, however a batch is cut. One
    of demonstrations makes their tokens more likely. Of one of preferences: pairs (or responses) do not affect each
    other, and a policy that is its reference makes the chosen (good) response more likely and the rejected (bad) one
    less. Metrics carry no gradient.

    Args:
        algorithm: an object, of posttrain's or of your own.
        slopes: whether the gradient is the slope of the loss, by finite differences; off for a loss that stops
            gradients on purpose.

    Raises:
        ConformanceError: a line for each rule that is broken.
    """
    require(_violations(algorithm, slopes=slopes))


Rule = Callable[[Any], list[str]]


def _violations(algorithm: Algorithm, *, slopes: bool) -> list[str]:
    if faults := _asked(_members, algorithm):
        return faults
    rules = (_imitates,) if isinstance(algorithm, SupervisedAlgorithm) else PREFERENCE
    rules = ONLINE if isinstance(algorithm, OnlineAlgorithm) else rules
    first, *others = [rule for rule in rules if slopes or rule.__name__ != "gradients_are_slopes"]
    return _asked(first, algorithm) or [fault for rule in others for fault in _asked(rule, algorithm)]


def _asked(rule: Rule, algorithm: Algorithm) -> list[str]:
    """What a rule finds; an exception of the algorithm is a violation."""
    try:
        return rule(algorithm)
    except Exception as error:
        given = ", ".join(type(need).__name__ for need in algorithm.inputs) or "none"
        rule_name = rule.__name__.strip("_").replace("_", " ")
        where = place_in_user_code(error)
        return [f"{rule_name}: with the inputs that it declares ({given}) it raised {described(error)}{where}"]


def _members(algorithm: Algorithm) -> list[str]:
    name = type(algorithm).__name__
    if isinstance(algorithm, type):
        return [f"it is the class {algorithm.__name__}; expected an object: type {algorithm.__name__}()"]
    if not dataclasses.is_dataclass(algorithm) or not cast(Any, algorithm).__dataclass_params__.frozen:
        return [f"{name} is no frozen dataclass; type @dataclass(frozen=True) above it"]
    family = getattr(algorithm, "family", None)
    kinds: dict[Any, tuple[type[Any], ...]] = {
        "online": (OnlineAlgorithm,),
        "preference": (PreferenceAlgorithm, UnpairedAlgorithm),
        "supervised": (SupervisedAlgorithm,),
    }
    if family not in kinds:
        return [f"its family is {family!r}; expected 'online', 'preference' or 'supervised'"]
    if not isinstance(algorithm, kinds[family]):
        lacks = [f"{', '.join(_lacking(algorithm, kind))} of {kind.__name__}" for kind in kinds[family]]
        return [f"it lacks {', or '.join(lacks)}"]
    if strangers := [need for need in algorithm.inputs if not isinstance(cast(object, need), Input)]:
        return [f"it declares {strangers[0]!r}; expected an Input of posttrain.algorithms.inputs"]
    if isinstance(algorithm, ActorCritic) != (declared(algorithm, CriticValues) is not None):
        return ["it has critic_loss and does not declare CriticValues, or the other way round"]
    return []


def _lacking(algorithm: object, kind: type[Any]) -> list[str]:
    named = {name for base in kind.__mro__ for name in (*vars(base), *inspect.get_annotations(base))}
    return sorted(name for name in named if not name.startswith("_") and not hasattr(algorithm, name))


class Sample(NamedTuple):
    """A batch of samples with what an algorithm declares, and the policy and the critic after some updates on it."""

    rollout: Rollout
    branch_N: Int[Tensor, "N"]
    logprobs_N: Float[Tensor, "N"]
    entropy_N: Float[Tensor, "N"]
    values_N: Float[Tensor, "N"]

    def rows(self, order: Sequence[int]) -> "Sample":
        """The batch with its rows in another order; rows that are left out have no tokens."""
        plain = self.rollout
        at_R = torch.tensor([*order, *(row for row in range(len(plain.rewards_R)) if row not in order)])
        at_N = torch.cat([(plain.row_N == row).nonzero().flatten() for row in order])
        row_N = torch.cat([torch.full((int((plain.row_N == row).sum()),), i) for i, row in enumerate(order)])
        columns = plain.columns
        tensors = {name: column for name, column in columns.items() if torch.is_tensor(column)}
        moved: dict[str, Any] = {name: column[at_R] for name, column in tensors.items() if name.endswith(("_R", "_RK"))}
        moved |= {name: column[at_N] for name, column in tensors.items() if name.endswith("_N")}
        moved["kinds_R"] = tuple(plain.kinds_R[row] for row in at_R.tolist()) if plain.kinds_R else ()
        branch_N = torch.unique(self.branch_N[at_N], return_inverse=True)[1]
        tokens = (self.logprobs_N[at_N], self.entropy_N[at_N], self.values_N[at_N])
        return Sample(Rollout.of({**columns, **moved, "row_N": row_N}, LONGEST), branch_N, *tokens)


def _sample(algorithm: OnlineAlgorithm) -> Sample:
    """Three tasks of two seats each, in groups of several sizes; some rows have two branches."""
    g = torch.Generator().manual_seed(0)
    least = max(2, algorithm.least_group)
    places = [(task, seat) for task in range(3) for seat in range(2) for _ in range(least + (task + seat) % 2)]
    lengths = torch.randint(1, LONGEST + 1, (len(places),), generator=g)
    row_N = torch.arange(len(places)).repeat_interleave(lengths)
    place_N = torch.cat([torch.arange(int(length)) for length in lengths])
    second_N = (place_N >= 3) & (row_N % 2 == 0)  # in the second branch of its row

    def drawn(count: int) -> Tensor:
        return torch.rand(count, generator=g, dtype=torch.float64)

    rows, tokens = len(places), len(row_N)
    sampler_N = -2 * drawn(tokens) - 0.1
    step_N = place_N // 2
    columns: dict[str, Any] = {
        "greedy_R": drawn(rows),
        "values_N": drawn(tokens),
        "reference_N": sampler_N + 0.5 * drawn(tokens) - 0.25,
        "teacher_N": sampler_N + 0.8 * drawn(tokens) - 0.3,
        "baselines_R": drawn(rows),
        "scores_RK": drawn(2 * rows).view(rows, 2),
        "weights_K": torch.tensor([1.0, 0.5], dtype=torch.float64),
        "step_rewards_N": torch.where(place_N % 2 == 0, drawn(tokens), 0.0),
        "step_end_N": place_N % 2 == 0,
        "kinds_R": tuple(("sum", "word", "sum")[task] for task, _ in places),
    }
    if declared(algorithm, StateValues):  # one value for all tokens of a step
        columns |= {"step_N": step_N, "values_N": drawn(8 * rows)[8 * row_N + step_N]}
    given: dict[str, Any] = {
        "rewards_R": drawn(rows) - 0.3,
        "group_R": torch.tensor([task for task, _ in places]),
        "row_N": row_N,
        "seat_R": torch.tensor([seat for _, seat in places]),
        "sampler_N": sampler_N,
    }
    for name in {name: None for need in algorithm.inputs for name in need.columns}:  # of an own input, random numbers
        given[name] = columns[name] if name in columns else drawn(tokens if name.endswith("_N") else rows)
    rollout = Rollout.of(given, LONGEST)
    branch_N = torch.unique(2 * row_N + second_N, return_inverse=True)[1]
    return Sample(rollout, branch_N, sampler_N + 0.3 * drawn(tokens) - 0.15, 2 * drawn(tokens), drawn(tokens))


def _tokens(algorithm: OnlineAlgorithm, sample: Sample, found: Advantages) -> Tokens:
    """What the trainer hands to `loss`, of the whole batch."""
    rollout = sample.rollout
    assert rollout.sampler_N is not None
    critic, taught = isinstance(algorithm, ActorCritic), declared(algorithm, TeacherDistributions)
    return Tokens(
        sample.logprobs_N.clone().requires_grad_(),
        old_N=rollout.sampler_N,
        advantages_N=found.advantages_N,
        branch_N=sample.branch_N,
        reference_N=rollout.reference_N,
        entropy_N=sample.entropy_N.clone().requires_grad_(),
        values_N=sample.values_N.clone().requires_grad_() if critic else None,
        old_values_N=rollout.values_N if critic else None,
        sampler_N=rollout.sampler_N,
        divergence_N=sample.entropy_N.clone().requires_grad_() if taught else None,  # any positive numbers do
        **{name: numbers_N for name, numbers_N in found.columns.items() if name != "advantages_N"},
    )


def _reduced(algorithm: OnlineAlgorithm, sample: Sample, tokens: Tokens, here: Tensor | None = None) -> Tensor:
    """The loss of a batch, or the contribution of some of its tokens."""
    rollout = sample.rollout
    length_N = rollout.per_token(rollout.lengths_R)
    counts = Counts(len(rollout.rewards_R), len(length_N), LONGEST)
    if here is None:
        return algorithm.reduce(algorithm.loss(tokens).loss_N, length_N, counts)
    return algorithm.reduce(algorithm.loss(_chosen(tokens, here)).loss_N, length_N[here], counts)


def _chosen(tokens: Tokens, here: Tensor) -> Tokens:
    """A micro-batch of some tokens."""
    given = tokens._asdict()
    part = tokens._replace(**{name: None if column is None else column[here] for name, column in given.items()})
    return part._replace(branch_N=torch.unique(part.branch_N, return_inverse=True)[1])


def _leaves(tokens: Tokens) -> dict[str, Tensor]:
    named = {"logprobs": tokens.logprobs_N, "values": tokens.values_N, "entropy": tokens.entropy_N}
    named |= {"divergence": tokens.divergence_N}
    return {name: leaf for name, leaf in named.items() if leaf is not None}


def _gradients(loss: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    """By name; zeros where the loss does not depend on it."""
    leaves = _leaves(tokens)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _numbers_have_their_shapes(algorithm: OnlineAlgorithm) -> list[str]:
    sample = _sample(algorithm)
    before = [column.clone() for column in sample.rollout.columns.values() if isinstance(column, Tensor)]
    found = algorithm.advantages(sample.rollout)
    if not isinstance(cast(object, found), Advantages):
        return [f"advantages returned {type(found).__name__}; expected Advantages"]
    shape = sample.rollout.row_N.shape
    faults = list[str]()
    for name, column in found.columns.items():
        name = name.removesuffix("_N")
        faults += ill_formed(name, column, shape) + ([f"{name} carry a gradient"] if column.requires_grad else [])
    if isinstance(algorithm, ActorCritic) and found.returns_N is None:
        faults.append("it has a critic, and advantages has no returns_N for it")
    if faults:
        return faults
    tokens = _tokens(algorithm, sample, found)
    out = algorithm.loss(tokens)
    if not isinstance(cast(object, out), TokenLoss):
        return [f"loss returned {type(out).__name__}; expected TokenLoss"]
    faults = ill_formed("loss", out.loss_N, shape) + metric_faults(out.metrics, shape)
    if faults:
        return faults
    faults = ill_formed("what reduce returns", _reduced(algorithm, sample, tokens), torch.Size(()))
    again = algorithm.advantages(sample.rollout).advantages_N, algorithm.loss(tokens).loss_N
    if not torch.equal(again[0], found.advantages_N) or not torch.equal(again[1], out.loss_N):
        faults.append("advantages or losses of the same batch differ from call to call")
    after = [column for column in sample.rollout.columns.values() if isinstance(column, Tensor)]
    if not all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
        faults.append("advantages changes the rollout that it is given")
    return faults


def _inputs_are_what_it_declares(algorithm: OnlineAlgorithm) -> list[str]:
    """Where a declared column is missing, it raises: what is silent would train on something else."""
    faults = list[str]()
    for need in algorithm.inputs:
        columns = () if isinstance(need, PromptKinds) else need.columns  # data may have no kinds
        for column in columns:
            sample = _sample(algorithm)
            left = {name: values for name, values in sample.rollout.columns.items() if name != column}
            sample = sample._replace(rollout=Rollout.of(left, LONGEST))
            try:
                _reduced(algorithm, sample, _tokens(algorithm, sample, algorithm.advantages(sample.rollout)))
            except Exception:
                continue
            faults.append(f"it declares {type(need).__name__}, and raises nothing where {column} is missing")
    return faults


def _rows_have_no_order(algorithm: OnlineAlgorithm) -> list[str]:
    sample = _sample(algorithm)
    order = list(range(len(sample.rollout.rewards_R)))
    order = order[1::2] + order[::2][::-1]
    moved_N = torch.cat([(sample.rollout.row_N == row).nonzero().flatten() for row in order])
    expected_N = algorithm.advantages(sample.rollout).advantages_N[moved_N]
    gap = apart(algorithm.advantages(sample.rows(order).rollout).advantages_N, expected_N)
    return [f"with its rows in another order a batch has advantages {gap:.1e} apart"] if gap > 1e-9 else []


def _seats_are_groups(algorithm: OnlineAlgorithm) -> list[str]:
    """Rows of one task and seat are compared; the seats of a task as two tasks have the same advantages."""
    plain = _sample(algorithm).rollout
    assert plain.seat_R is not None
    kinds = tuple(f"{kind} {seat}" for kind, seat in zip(plain.kinds_R, plain.seats, strict=bool(plain.kinds_R)))
    split = plain._replace(group_R=2 * plain.group_R + plain.seat_R, seat_R=None, kinds_R=kinds)
    gap = apart(algorithm.advantages(plain).advantages_N, algorithm.advantages(split).advantages_N)
    return [f"rows of two seats are compared: as two groups their advantages are {gap:.1e} apart"] if gap > 1e-9 else []


def _a_row_may_be_empty(algorithm: OnlineAlgorithm) -> list[str]:
    sample = _sample(algorithm)
    emptied = sample.rows(range(len(sample.rollout.rewards_R) - 1))
    found = algorithm.advantages(emptied.rollout)
    tokens = _tokens(algorithm, emptied, found)
    return [
        f"where a row has no tokens, {fault}"
        for fault in ill_formed("advantages", found.advantages_N, emptied.rollout.row_N.shape)
        + ill_formed("what reduce returns", _reduced(algorithm, emptied, tokens), torch.Size(()))
    ]


def _cuts_change_nothing(algorithm: OnlineAlgorithm) -> list[str]:
    sample = _sample(algorithm)
    tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
    whole = _reduced(algorithm, sample, tokens)
    cut = sum(_reduced(algorithm, sample, tokens, sample.branch_N % 3 == i) for i in range(3))
    assert torch.is_tensor(cut)
    gap = apart(whole, cut)
    faults = [f"cut into micro-batches, a batch has a loss {gap:.1e} apart"] if gap > 1e-9 else []
    one, other = (_gradients(loss, tokens) for loss in (whole, cut))
    far = {name: apart(one[name], other[name]) for name in one}
    faults += [
        f"cut into micro-batches, a batch has gradients of {name} {gap:.1e} apart"
        for name, gap in far.items()
        if gap > 1e-9
    ]
    return faults


def gradients_are_slopes(algorithm: OnlineAlgorithm) -> list[str]:
    """By finite differences."""
    sample = _sample(algorithm)
    tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
    found = _gradients(_reduced(algorithm, sample, tokens), tokens)

    def loss_of(name: str) -> Callable[[Tensor], Tensor]:
        return lambda numbers_N: _reduced(algorithm, sample, tokens._replace(**{f"{name}_N": numbers_N}))

    return [fault for name, leaf in _leaves(tokens).items() for fault in steep(name, found[name], leaf, loss_of(name))]


def _the_first_update_follows_the_advantages(algorithm: OnlineAlgorithm) -> list[str]:
    sample = _sample(algorithm)
    found = algorithm.advantages(sample.rollout)
    sign_N = torch.where(sample.branch_N % 2 == 0, 1.0, -1.0).double()
    tokens = _tokens(algorithm, sample, found)
    tokens = tokens._replace(
        old_N=tokens.logprobs_N.detach(),
        sampler_N=tokens.logprobs_N.detach(),
        advantages_N=sign_N,
        reference_N=None if tokens.reference_N is None else tokens.logprobs_N.detach(),
        imitation_N=None if found.imitation_N is None else torch.zeros_like(sign_N),
    )
    slope_N = _gradients(_reduced(algorithm, sample, tokens), tokens)["logprobs"]
    wrong_N = (slope_N * sign_N >= 0).nonzero().flatten().tolist()
    faults = list[str]()
    if wrong_N:
        faults.append(
            f"at the first update {len(wrong_N)} of {len(sign_N)} tokens do not follow their advantage: one of "
            f"advantage {sign_N[wrong_N[0]]:g} has a gradient of {slope_N[wrong_N[0]]:.2e}"
        )
    ratio_N = algorithm.loss(tokens).metrics.get("ratio")
    if ratio_N is not None and not (ratio_N == 1).all():
        faults.append(f"at the first update the ratio is {ratio_N[ratio_N != 1][0]:g}; expected 1")
    return faults


def _silent_at_zero(algorithm: OnlineAlgorithm) -> list[str]:
    if not algorithm.silent_at_zero:
        return []
    sample = _sample(algorithm)
    tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
    tokens = tokens._replace(advantages_N=torch.zeros_like(tokens.advantages_N))
    slope = float(_gradients(algorithm.loss(tokens).loss_N.sum(), tokens)["logprobs"].abs().max())
    return [f"silent_at_zero is True, and tokens of advantage 0 have gradients up to {slope:.1e}"] if slope else []


def _entropy_is_declared(algorithm: OnlineAlgorithm) -> list[str]:
    if algorithm.needs_entropy:
        return []
    sample = _sample(algorithm)
    tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
    slope = float(_gradients(_reduced(algorithm, sample, tokens), tokens)["entropy"].abs().max())
    return [f"needs_entropy is False, and the entropy has gradients up to {slope:.1e}"] if slope else []


def _the_critic_alone_learns_the_same(algorithm: OnlineAlgorithm) -> list[str]:
    if not isinstance(algorithm, ActorCritic):
        return []
    sample = _sample(algorithm)
    tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
    values_N, old_N, returns_N = tokens.values_N, tokens.old_values_N, tokens.returns_N
    assert values_N is not None and old_N is not None and returns_N is not None
    both_N, alone_N = (
        torch.autograd.grad(loss_N.sum(), values_N)[0]
        for loss_N in (algorithm.loss(tokens).loss_N, algorithm.critic_loss(values_N, old_N, returns_N).loss_N)
    )
    gap = apart(both_N, alone_N)
    return [f"the critic's gradients in loss and in critic_loss are {gap:.1e} apart"] if gap > 1e-9 else []


def _models_beside_have_a_loss(algorithm: OnlineAlgorithm) -> list[str]:
    faults = list[str]()
    for part, need in trained(algorithm).items():
        if part == CRITIC:
            continue
        sample = _sample(algorithm)
        tokens = _tokens(algorithm, sample, algorithm.advantages(sample.rollout))
        said_N = sample.values_N.clone().requires_grad_()
        tokens = tokens._replace(values_N=said_N, old_values_N=sample.rollout.columns[need.columns[0]])
        length_N = sample.rollout.per_token(sample.rollout.lengths_R)
        counts = Counts(len(sample.rollout.rewards_R), len(length_N), LONGEST)
        out = need.loss(algorithm, tokens)
        faults += ill_formed(f"the loss of {part}", out.loss_N, said_N.shape) + metric_faults(out.metrics, said_N.shape)
        if faults:
            return faults
        whole = need.reduce(algorithm, out.loss_N, length_N, counts)
        cuts = list[Tensor]()
        for here_N in (sample.branch_N % 2 == half for half in range(2)):
            loss_N = need.loss(algorithm, _chosen(tokens, here_N)).loss_N
            cuts.append(need.reduce(algorithm, loss_N, length_N[here_N], counts))
        if gap := apart(whole, cuts[0] + cuts[1]):
            faults += [f"cut into micro-batches, a batch has a loss of {part} {gap:.1e} apart"] if gap > 1e-9 else []
        if not torch.autograd.grad(whole, said_N, allow_unused=True, materialize_grads=True)[0].any():
            faults.append(f"the loss of {part} does not depend on what it says, values_N")
    return faults


def _imitates(algorithm: SupervisedAlgorithm) -> list[str]:
    logprobs_N = torch.linspace(-3.0, -0.1, 8, dtype=torch.float64, requires_grad=True)
    loss_N = algorithm.loss_of_tokens(logprobs_N)
    faults = ill_formed("loss", loss_N, logprobs_N.shape)
    if not faults and not (torch.autograd.grad(loss_N.sum(), logprobs_N)[0] < 0).all():
        faults.append("a lower loss makes a token of a demonstration less likely")
    return faults


def _it_adapts_and_accepts(algorithm: OnlineAlgorithm) -> list[str]:
    later = algorithm.adapted(0.5)
    if type(later) is not type(algorithm):
        return [f"adapted returned {type(later).__name__}; expected {type(algorithm).__name__}"]
    rewards_G = torch.linspace(0, 1, max(2, algorithm.least_group), dtype=torch.float64)
    verdict = cast(object, algorithm.accepts(rewards_G))
    return [] if isinstance(verdict, bool) else [f"accepts returned {verdict!r}; expected True or False"]


ONLINE: tuple[Rule, ...] = (
    _numbers_have_their_shapes,
    _inputs_are_what_it_declares,
    _rows_have_no_order,
    _seats_are_groups,
    _a_row_may_be_empty,
    _cuts_change_nothing,
    gradients_are_slopes,
    _the_first_update_follows_the_advantages,
    _silent_at_zero,
    _entropy_is_declared,
    _the_critic_alone_learns_the_same,
    _models_beside_have_a_loss,
    _it_adapts_and_accepts,
)
