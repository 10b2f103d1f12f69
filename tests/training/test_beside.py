"""A model that is trained beside the policy: what reaches it, what does not, and that a checkpoint has it."""

from dataclasses import dataclass

import pytest
import torch

from posttrain.algorithms.algorithm import TokenLoss
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.inputs import REFERENCE, TrainedModel, trained
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.prime import PRIME
from posttrain.algorithms.vapo import VAPO
from posttrain.errors import UserError
from posttrain.models.float64_reference import Float64
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.reference import Critic, FrozenCopy, TrainedCopy
from posttrain.options.online import RL
from posttrain.testing import check_algorithm
from posttrain.training.beside import BesideLoss, gradients, losses_beside, models_beside, rates_beside
from posttrain.training.learner import CRITIC, POLICY
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, context_of, policy_batch
from tests.references import recent
from tests.tiny import tiny_llama
from tests.training.test_policy import SPOKEN, groups
from tests.violations import violations

ALGORITHM = PRIME(prm_beta=0.4)
REWARDS = [[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]]


@dataclass(frozen=True)
class Odds(TrainedModel):
    """A head that foresees the reward, and is no critic."""

    title = "odds"
    columns = ("odds_N",)
    part = "odds"
    head = True

    def loss(self, algorithm, tokens):
        return TokenLoss(
            (tokens.values_N - tokens.returns_N).square(), {"miss": (tokens.returns_N - tokens.old_values_N)}
        )


@dataclass(frozen=True)
class Foreseen(GRPO):
    """GRPO with what a head foresees as the baseline."""

    odds_lr: float | None = None
    """Its learning rate."""

    @property
    def inputs(self):
        return (*super().inputs, Odds(lr=self.odds_lr))

    def advantages(self, rollout):
        found, odds_N = super().advantages(rollout), rollout.more["odds_N"]
        rewards_N = rollout.per_token(rollout.rewards_R)
        return found._replace(advantages_N=rewards_N - odds_N, returns_N=rewards_N)


def learner_with(part, make, *, tokens=1000, dtype=torch.float64):
    model = tiny_llama(dtype=dtype)
    made = make(model)
    return LocalLearner(
        model,
        MasterAdamW(model.trainable()),
        microbatch_tokens=tokens,
        beside={part: (made, MasterAdamW(made.parameters()))},
        references={REFERENCE: FrozenCopy(tiny_llama(seed=1, dtype=dtype))},
        save_model=model.save,
    )


def prm(dtype=torch.float64, **options):
    return learner_with("prm", lambda model: TrainedCopy(tiny_llama(seed=2, dtype=dtype)), dtype=dtype, **options)


def weights(learner):
    return {
        part: {name: master.detach().clone() for name, master in own.named_masters().items()}
        for part, own in learner._optimizers.items()
    }


def moved(before, after):
    return {part for part in before if any(not torch.equal(before[part][n], after[part][n]) for n in before[part])}


@pytest.mark.parametrize("tokens", [1000, 9])
def test_its_loss_is_the_cross_entropy_of_completions_and_its_own_gradient(tokens):
    learner = prm(tokens=tokens)
    with Float64():
        batch, told = policy_batch(groups(REWARDS), ALGORITHM, context=context_of(learner))
        assert batch.tokens["prm"] == learner.logprobs(batch.examples, "prm")
        before = weights(learner)
        found = learner.forward_backward(batch, BesideLoss(ALGORITHM, "prm"))
        labels = [min(reward, 1.0) for rewards in REWARDS for reward in rewards]
        rows = list(zip(batch.tokens["prm"], batch.tokens["reference_logprobs"], labels, strict=True))
        expected = recent.implicit_reward_loss(rows, beta=0.4)
        assert found["loss"] == pytest.approx(sum(expected) / 6, rel=1e-9)
        implicit = [0.4 * sum(a - b for a, b in zip(*row[:2], strict=True)) for row in rows]
        assert told["groups/implicit_reward"] == pytest.approx(sum(implicit) / 6)
        assert (
            told["groups/prm_accuracy"] == sum((r > 0) == (y > 0.5) for r, y in zip(implicit, labels, strict=True)) / 6
        )
        assert learner.optim_step({POLICY: 0.1})["grad_norm"] == 0.0
        assert set(learner.optim_step({"prm": 1e-2})) == {"prm_grad_norm"}
        assert moved(before, weights(learner)) == {"prm"}
        lower = learner.forward(batch, BesideLoss(ALGORITHM, "prm"))["loss"]
        assert lower < found["loss"]


def test_the_policy_learns_from_rewards_and_gives_the_second_model_nothing():
    learner = prm()
    with Float64():
        batch, _ = policy_batch(groups(REWARDS), ALGORITHM, context=context_of(learner), key="1")
        before = weights(learner)
        learner.forward_backward(batch, PolicyLoss(ALGORITHM))
        assert learner.optim_step({"prm": 0.1}) == {"prm_grad_norm": 0.0}
        learner.optim_step({POLICY: 1e-2})
        assert moved(before, weights(learner)) == {POLICY}
        both = prm()
        told = gradients(both, batch, [PolicyLoss(ALGORITHM), *losses_beside(ALGORITHM, 1.0, alone=False)])
        norms = both.optim_step({POLICY: 1e-2, "prm": 1e-2})
    assert {"loss", "prm_loss", "ratio/mean"} <= told.keys() and min(norms.values()) > 0 < told["prm_loss"]


def test_a_head_reads_the_trunk_and_leaves_it_alone():
    algorithm = Foreseen(kl_coefficient=0.0)
    learner = learner_with("odds", Critic)
    with Float64():
        batch, _ = policy_batch(groups(REWARDS), algorithm, context=context_of(learner))
        nothing = [(0.0,) * len(said) for members in SPOKEN for _, said in members]
        assert batch.tokens["odds"] == learner.values(batch.examples, "odds") == nothing
        found = learner.forward_backward(batch, BesideLoss(algorithm, "odds"))
        squares = [reward**2 for rewards in REWARDS for reward in rewards]
        assert found["loss"] == pytest.approx(sum(squares) / 6)  # each completion weighs the same
        assert all(p.grad is None for _, p in learner.model.trainable())
        before = weights(learner)
        learner.optim_step({"odds": 1e-2})
        assert moved(before, weights(learner)) == {"odds"}
        later = learner.forward(batch, BesideLoss(algorithm, "odds"))
        # the miss is of what it said before the update
        assert later["loss"] != found["loss"] and later["miss"] == found["miss"]


def test_groups_of_equal_rewards_teach_the_second_model_too():
    """Where the policy alone learns, they are left out."""
    with Float64():
        for algorithm, kept in ((ALGORITHM, 2), (GRPO(kl_coefficient=0.0), 1)):
            batch, told = policy_batch(groups([[1.0] * 3, REWARDS[1]]), algorithm, context=context_of(prm()))
            assert (told["groups/kept"], len(batch.examples)) == (kept, 3 * kept)


def test_a_checkpoint_has_it(tmp_path):
    learner, again = prm(dtype=torch.float32), prm(dtype=torch.float32)
    batch, _ = policy_batch(groups(REWARDS), ALGORITHM, context=context_of(learner))
    loss = BesideLoss(ALGORITHM, "prm")

    def step(one):
        return one.forward_backward(batch, loss) | one.optim_step({"prm": 1e-2})

    step(learner)
    learner.save(tmp_path)
    assert {"prm-masters.safetensors", "prm-optimizer.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    step(again)
    step(again)
    again.restore(tmp_path)
    assert step(again) == step(learner)
    assert again.logprobs(batch.examples, "prm") == learner.logprobs(batch.examples, "prm")


def test_what_is_made_of_a_policy_and_how_fast_each_learns():
    options, model = RL(critic_lr=0.5), tiny_llama()
    assert models_beside(options, GRPO(), model) == {} == rates_beside(options, GRPO())
    (made, _), head = models_beside(options, PRIME(prm_lr=0.25), model)["prm"], models_beside(options, PPO(), model)
    assert isinstance(made, TrainedCopy) and made.body.network is not model.network
    assert isinstance(head[CRITIC][0], Critic) and head[CRITIC][0].body is model
    assert rates_beside(options, PRIME(prm_lr=0.25)) == {"prm": 0.25} and rates_beside(options, PPO()) == {CRITIC: 0.5}
    assert rates_beside(options, Foreseen()) == {"odds": 0.5} and rates_beside(options, Foreseen(odds_lr=2.0)) == {
        "odds": 2.0
    }
    alone = [
        [one.part for one in losses_beside(kind(), 1.0, alone=way)] for kind in (VAPO, PRIME) for way in (True, False)
    ]
    assert alone == [["critic"], [], ["prm"], ["prm"]]


def test_of_a_policy_with_an_adapter_it_has_one_of_its_own():
    pytest.importorskip("peft")
    model = add_adapter(tiny_llama(), Lora(2))
    made = TrainedCopy(model)
    assert [name for name, _ in made.parameters()] == [name for name, _ in model.trainable()]
    assert not {id(p) for _, p in made.parameters()} & {id(p) for _, p in model.trainable()}


def test_a_part_has_a_name_of_its_own():
    for taken in (REFERENCE, POLICY, "teacher math", "start"):
        named = type("Named", (Odds,), {"part": taken})
        with pytest.raises(UserError, match=f"the part '{taken}' of Named is another model"):
            trained(type("With", (Foreseen,), {"inputs": (named(),)})())
    with pytest.raises(UserError, match="the part 'my-odds' of Named is no name; use letters, digits and _"):
        trained(type("With", (Foreseen,), {"inputs": (type("Named", (Odds,), {"part": "my-odds"})(),)})())
    with pytest.raises(UserError, match="the part 'odds' of Odds"):
        trained(type("Twice", (Foreseen,), {"inputs": (Odds(), Odds())})())


def test_the_kit_checks_what_is_trained_beside():
    check_algorithm(PRIME())
    check_algorithm(Foreseen(kl_coefficient=0.0))

    @dataclass(frozen=True)
    class Deaf(Odds):
        def loss(self, algorithm, tokens):
            return TokenLoss(0.0 * tokens.values_N + 1.0, {})

    @dataclass(frozen=True)
    class OfAll(Odds):
        def loss(self, algorithm, tokens):
            return TokenLoss(tokens.values_N - tokens.values_N.mean() + tokens.values_N**2, {})

    for kind, said in ((Deaf, "does not depend on what it says"), (OfAll, "a loss of odds"), (TrainedModel, "odds")):
        own = kind if kind is not TrainedModel else type("Bare", (Odds,), {"loss": TrainedModel.loss})
        bad = type("Bad", (Foreseen,), {"inputs": property(lambda self, own=own: (own(),))})
        assert any(
            said in one or "needs a method loss" in one for one in violations(check_algorithm, bad(kl_coefficient=0.0))
        )
