"""On-policy distillation: its gradient is that of the reverse KL at the states that the student visits, exactly."""

import itertools

import pytest
import torch

from posttrain.algorithms.algorithm import Counts, Tokens
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.rollout import Rollout

V = 3  # words; a completion has two, so a student is in one of 1 + V states


def tables(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the student, which carry a gradient, and logprobs of the teacher: [1 + V states, V]."""
    g = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 1 + V, V, generator=g, dtype=torch.float64)
    return student.requires_grad_(), teacher.log_softmax(-1)


def update(algorithm: OPD, logits: torch.Tensor, teacher: torch.Tensor, said: list, rewards: list) -> torch.Tensor:
    """The loss of a batch of completions of one prompt, sampled from the student as it is."""
    states, words = torch.tensor([s for a, b in said for s in (0, 1 + a)]), torch.tensor(said).flatten()
    logprobs = logits.log_softmax(-1)[states, words]
    row = torch.arange(len(said)).repeat_interleave(2)
    found = algorithm.advantages(
        Rollout(
            torch.tensor(rewards, dtype=torch.float64),
            torch.zeros(len(said), dtype=torch.long),
            row,
            sampler_N=logprobs.detach(),
            teacher_N=teacher[states, words],
        )
    )
    loss = algorithm.loss(Tokens(logprobs, logprobs.detach(), found.advantages_N, row)).loss_N
    return algorithm.reduce(loss, torch.full_like(row, 2), Counts(len(said), len(row)))


def visited(logits: torch.Tensor) -> torch.Tensor:
    """How often each state is visited by a completion; no gradient goes through it."""
    return torch.cat([torch.ones(1, dtype=torch.float64), logits[0].softmax(-1)]).detach()


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_is_that_of_the_reverse_kl_at_visited_states(seed):
    logits, teacher = tables(seed)
    p = logits.detach().softmax(-1)
    expected = torch.zeros_like(p)
    for a, b in itertools.product(range(V), repeat=2):
        (gradient,) = torch.autograd.grad(update(OPD(), logits, teacher, [(a, b)], [0.0]), logits)
        expected += p[0, a] * p[1 + a, b] * gradient
    logprobs = logits.log_softmax(-1)
    reverse_kl = (logprobs.exp() * (logprobs - teacher)).sum(-1)
    (exact,) = torch.autograd.grad((visited(logits) * reverse_kl).sum() / 2, logits)  # per token of a completion of two
    torch.testing.assert_close(expected, exact, rtol=1e-12, atol=1e-14)
    assert exact.abs().max() > 0.01


def test_with_rewards_the_expected_gradient_has_that_of_the_expected_reward_besides():
    logits, teacher = tables(7)
    p = logits.detach().softmax(-1)
    every = list(itertools.product(range(V), repeat=2))
    worth = {said: 0.3 * said[0] - said[1] ** 2 for said in every}
    chance = {(a, b): (p[0, a] * p[1 + a, b]).item() for a, b in every}
    found = {}
    for weight in (0.0, 0.5):
        total = torch.zeros_like(p)
        for one, other in itertools.product(every, repeat=2):
            loss = update(OPD(weight), logits, teacher, [one, other], [worth[one], worth[other]])
            total += chance[one] * chance[other] * torch.autograd.grad(loss, logits)[0]
        found[weight] = total
    q = logits.softmax(-1)
    expected_reward = sum(q[0, a] * q[1 + a, b] * worth[a, b] for a, b in every)
    (gradient,) = torch.autograd.grad(-0.5 * expected_reward / 2, logits)
    torch.testing.assert_close(found[0.5] - found[0.0], gradient, rtol=1e-10, atol=1e-13)


def test_a_student_that_is_its_teacher_learns_nothing():
    logits, _ = tables(0)
    loss = update(OPD(), logits, logits.detach().log_softmax(-1), [(0, 1), (2, 2)], [1.0, 0.0])
    assert not torch.autograd.grad(loss, logits)[0].any()


def test_descent_ends_at_the_teacher():
    logits, teacher = tables(1)
    for _ in range(400):
        p = logits.detach().softmax(-1)
        step = sum(
            p[0, a] * p[1 + a, b] * torch.autograd.grad(update(OPD(), logits, teacher, [(a, b)], [0.0]), logits)[0]
            for a, b in itertools.product(range(V), repeat=2)
        )
        with torch.no_grad():
            logits -= 5.0 * step
    torch.testing.assert_close(logits.log_softmax(-1), teacher, rtol=0, atol=1e-3)


def test_numbers_by_hand():
    rollout = Rollout(
        torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64),
        torch.zeros(3, dtype=torch.long),
        torch.tensor([0, 0, 1, 2]),
        sampler_N=torch.tensor([-1.0, -2.0, -0.5, -1.0], dtype=torch.float64),
        reference_N=torch.zeros(4, dtype=torch.float64),
        teacher_N=torch.tensor([-1.5, -1.0, -0.5, -3.0], dtype=torch.float64),
    )
    found = OPD().advantages(rollout)
    assert found.advantages_N.tolist() == [-0.5, 1.0, 0.0, -2.0] and found.metrics == {"teacher_kl": 0.375}
    # leave-one-out: 1 - 1/4, 0 - 3/4, 1/2 - 1/2
    assert OPD(2.0).advantages(rollout).advantages_N.tolist() == [1.0, 2.5, -1.5, -2.0]
