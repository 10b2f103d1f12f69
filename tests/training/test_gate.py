"""What a gate learns from choices whose reasons are known."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posttrain.data.packing import Example, Ranked
from posttrain.models.attributes import Gate, Mixture, Reading
from posttrain.training.attributes import Choices, _of_states_as_they_are, choices_of, fit_gate

D, K = 6, 3


def fresh(weights=(1.0, 1.0, 1.0), seed: int = 0) -> Mixture:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Mixture(Gate(D, K, 16), weights, 3.0)


def planted(prompts: int, counts: Callable[[Tensor], Tensor], *, seed: int = 0, scale: float = 4.0) -> Choices:
    """Pairs in which people choose by `counts(prompt) . a`, and err as Bradley and Terry have it."""
    generator = torch.Generator().manual_seed(seed)
    states = 5 + 3 * torch.randn(prompts, D, generator=generator)
    ahead = torch.randn(prompts, K, generator=generator)
    margin = scale * (counts(states) * ahead).sum(1)
    right = torch.rand(prompts, generator=generator) < torch.sigmoid(margin)
    ahead = torch.where(right[:, None], ahead, -ahead)
    return Choices(states, ahead, torch.ones(prompts), torch.arange(prompts))


def by_prompt(states: Tensor) -> Tensor:
    """One attribute where the first number of the prompt's state is high, another where it is low."""
    high = (states[:, 0] > 5).float()
    return torch.stack([high, 1 - high, 0 * high], 1)


def always(states: Tensor) -> Tensor:
    return torch.tensor([0.75, 0.25, 0.0]).expand(len(states), K)


def share_right(mixture: Mixture, choices: Choices) -> float:
    score = (mixture.gate(choices.prompts_BD) * choices.ahead_BK).sum(1)
    return (score > 0).float().mean().item()


def test_what_counts_after_which_prompt_is_found_and_held_elsewhere():
    mixture = fit_gate(fresh(), planted(600, by_prompt), seed=0)
    other = planted(600, by_prompt, seed=1)
    ideal = ((by_prompt(other.prompts_BD) * other.ahead_BK).sum(1) > 0).float().mean().item()
    assert share_right(mixture, other) > ideal - 0.04 > share_right(fresh(), other) + 0.05
    states = torch.tensor([[9.0] + [5.0] * 5, [1.0] + [5.0] * 5])
    high, low = mixture.gate(states).tolist()
    assert high[0] > 0.7 and low[1] > 0.7 and max(high[2], low[2]) < 0.15


def test_where_the_prompt_says_nothing_the_weights_are_the_same_for_all_and_the_scale_is_people_s():
    choices = planted(2000, always)
    mixture = fit_gate(fresh(), choices, seed=0)
    gates = mixture.gate(choices.prompts_BD)
    assert gates.std(0).max() < 0.05
    assert gates.mean(0).tolist() == pytest.approx([0.75, 0.25, 0.0], abs=0.08)
    assert mixture.scale == pytest.approx(4.0, rel=0.2)


def test_few_choices_that_agree_do_not_make_it_certain():
    ahead = torch.tensor([[1.0, 0.0, 0.0]] * 4)
    few = Choices(torch.zeros(4, D), ahead, torch.ones(4), torch.arange(4))
    mixture = fit_gate(fresh(), few, seed=0)
    margin = mixture.scale * mixture.gate(torch.zeros(1, D))[0, 0].item()
    assert margin == pytest.approx(math.log(5), rel=0.02)  # one of six had chosen otherwise: odds of five to one
    two = few._replace(weight_B=torch.full((4,), 0.5), prompt_B=torch.tensor([0, 0, 1, 1]))
    mixture = fit_gate(fresh(), two, seed=0)
    margin = mixture.scale * mixture.gate(torch.zeros(1, D))[0, 0].item()
    assert margin == pytest.approx(math.log(3), rel=0.02)  # so many prompts, however many pairs


def test_a_gate_that_learned_on_other_scales_takes_states_as_they_are():
    gate = fresh().gate
    torch.nn.init.normal_(gate.outer.weight, generator=torch.Generator().manual_seed(0))
    states = planted(50, by_prompt).prompts_BD * torch.tensor([1.0, 9.0, 0.1, 3.0, 1.0, 2.0])
    mean, spread = states.mean(0), states.std(0)
    inside = gate((states - mean) / spread).detach()
    torch.testing.assert_close(
        _of_states_as_they_are(gate, mean, spread)(states).detach(), inside, rtol=1e-4, atol=1e-5
    )


def test_what_a_state_is_measured_in_makes_no_difference():
    choices = planted(100, by_prompt)
    other = choices._replace(prompts_BD=7 + choices.prompts_BD * torch.tensor([1.0, 9.0, 0.1, 3.0, 5.0, 2.0]))
    still = choices._replace(prompts_BD=torch.cat([choices.prompts_BD[:, :5], torch.ones(100, 1)], 1))
    found = [fit_gate(fresh(), one, seed=0) for one in (choices, other)]
    gates = [mixture.gate(one.prompts_BD).detach() for mixture, one in zip(found, (choices, other), strict=True)]
    torch.testing.assert_close(gates[0], gates[1], rtol=1e-2, atol=1e-2)
    assert fit_gate(fresh(), still, seed=0).gate(still.prompts_BD).isfinite().all()


def test_every_prompt_weighs_the_same():
    """The second prompt says the opposite, in as many pairs as one likes."""
    ahead = torch.tensor([[-1.0, 0.0, 0.0]] + [[1.0, 0.0, 0.0]] * 8)
    numbers = torch.tensor([0] + [1] * 8)
    weight = torch.tensor([1.0] + [1 / 8] * 8)
    mixture = fit_gate(fresh(), Choices(torch.zeros(9, D), ahead, weight, numbers), seed=0)
    assert mixture.scale * mixture.gate(torch.zeros(1, D))[0, 0].item() < 0.05


def test_it_depends_on_the_seed_alone_and_leaves_what_it_began_with():
    twice, begins = [planted(100, by_prompt) for _ in range(2)], fresh()
    before = {name: value.clone() for name, value in begins.gate.state_dict().items()}
    one, again = (fit_gate(begins, choices, seed=0) for choices in twice)
    for name, value in one.gate.state_dict().items():
        assert torch.equal(value, again.gate.state_dict()[name])
        assert torch.equal(begins.gate.state_dict()[name], before[name])
    assert one.scale == again.scale and one._replace(gate=begins.gate, scale=3.0) == begins


def test_a_fifth_of_the_prompts_is_not_learned_from_until_it_is_known_how_long(monkeypatch):
    from posttrain.training import attributes

    seen: list[int] = []
    real = attributes._Learner.__init__

    def init(self, mixture, choices):
        seen.append(len(choices.weight_B))
        real(self, mixture, choices)

    monkeypatch.setattr(attributes._Learner, "__init__", init)
    fit_gate(fresh(), planted(20, always), seed=0)
    fit_gate(fresh(), planted(4, always), seed=0)  # too few for that
    assert seen == [16, 20, 4]


def test_choices_are_those_of_the_rankings():
    mixture = fresh((1.0, 2.0, -1.0))._replace(apart=2, shares=(0.5, 0.0, 1.0))
    one, other = (Example((prompt,), (2,), (True,)) for prompt in (1, 5))
    rankings = [Ranked((one,) * 3, ((0, 1, 1.0), (2, 0, 2.0))), Ranked((other,) * 2, ((1, 0, 1.0),))]
    a = [[1.0, 2.0, 4.0], [0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [1.0, 1.0, 1.0], [2.0, 5.0, 1.0]]
    prompts = torch.arange(5.0)[:, None].expand(5, D)
    found = choices_of(mixture, Reading(prompts, torch.tensor(a)), rankings)
    counted = [[x - 0.5 * z, 2 * y, 0.0] for x, y, z in a]
    expected = [[p - q for p, q in zip(counted[i], counted[j], strict=True)] for i, j in ((0, 1), (2, 0), (4, 3))]
    assert found.ahead_BK.tolist() == expected
    assert found.prompts_BD[:, 0].tolist() == [0.0, 2.0, 4.0]
    assert found.weight_B.tolist() == [0.5, 0.5, 1.0] and found.prompt_B.tolist() == [0, 0, 1]
    again = choices_of(
        mixture,
        Reading(prompts[[0, 1, 2, 3, 4, 0, 1, 2]], torch.tensor(a)[[0, 1, 2, 3, 4, 0, 1, 2]]),
        [*rankings, rankings[0]._replace(pairs=((0, 1, 1.0),))],
    )
    assert again.prompt_B.tolist() == [0, 0, 1, 0]  # wherever it stands, a prompt is one
    assert again.weight_B.tolist() == pytest.approx([1 / 3, 1 / 3, 1.0, 1 / 3])
