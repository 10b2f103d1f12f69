"""Updates as tests want them: a learner made on the spot, a batch, a loss, one step or several."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import Context
from posttrain.data.packing import Example, Graded, Labelled, Pair, Ranked
from posttrain.models.reference import Critic
from posttrain.training.attributes import RatingLoss, rated_batch
from posttrain.training.beside import BesideLoss
from posttrain.training.learner import CRITIC, POLICY, REFERENCE, TEACHER, Batch, Column
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
from posttrain.training.policy import context_of as made_of
from posttrain.training.preference import objective_for
from posttrain.training.reward import RewardLoss, reward_gradient
from posttrain.training.supervised import NLL, supervised_batch


class TrainedCritic(NamedTuple):
    """A critic, and what updates its own parameters."""

    critic: Critic
    optimizer: MasterAdamW
    lr: float


def learner_of(
    model: Any,
    optimizer: MasterAdamW | None = None,
    *,
    microbatch_tokens: int = 4096,
    reference: Any = None,
    critic: TrainedCritic | None = None,
    teacher: Any = None,
) -> LocalLearner[Any]:
    """A learner of these parts."""
    return LocalLearner(
        model,
        optimizer or MasterAdamW(model.trainable()),
        microbatch_tokens=microbatch_tokens,
        body=getattr(model, "body", None),
        beside={CRITIC: critic[:2]} if critic else None,
        references={name: held for name, held in ((REFERENCE, reference), (TEACHER, teacher)) if held is not None},
    )


def context_of(model: Any, *, temperature: float = 1.0, **parts: Any) -> Context:
    """What providers ask, of a learner of these parts."""
    return made_of(learner_of(model, **parts), temperature=temperature)


def policy_step(
    model: Any,
    optimizer: MasterAdamW,
    algorithm: OnlineAlgorithm,
    batch: Batch,
    *,
    lr: float,
    microbatch_tokens: int,
    temperature: float = 1.0,
    updates: int = 1,
    tis_cap: float = 0.0,
    critic: TrainedCritic | None = None,
    pretraining: Sequence[Example] = (),
) -> dict[str, float]:
    """`updates` updates on one batch, as `posttrain rl` makes them."""
    learner = learner_of(model, optimizer, microbatch_tokens=microbatch_tokens, critic=critic)
    loss, batch, metrics = PolicyLoss(algorithm, temperature, tis_cap), replace(batch, key="this"), {}
    for _ in range(updates):
        metrics |= learner.forward_backward(batch, loss)
        for extra in algorithm.extra_losses if pretraining else ():
            found = learner.forward_backward(supervised_batch(pretraining, seed=batch.seed), NLL(extra.weight))
            metrics["pretraining_loss"] = found["loss"] / extra.weight
        metrics |= learner.optim_step({POLICY: lr} | ({CRITIC: critic.lr} if critic else {}))
    return metrics


def critic_step(
    model: Any, critic: TrainedCritic, algorithm: OnlineAlgorithm, batch: Batch, *, microbatch_tokens: int
) -> dict[str, float]:
    """One update of the critic alone."""
    learner = learner_of(model, microbatch_tokens=microbatch_tokens, critic=critic)
    return learner.forward_backward(batch, BesideLoss(algorithm)) | learner.optim_step({CRITIC: critic.lr})


def supervised_step(
    model: Any, optimizer: MasterAdamW, examples: Sequence[Example], *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on demonstrations."""
    learner = learner_of(model, optimizer, microbatch_tokens=microbatch_tokens)
    return learner.forward_backward(supervised_batch(examples), NLL()) | learner.optim_step({POLICY: lr})


def supervised_loss(model: Any, examples: Sequence[Example], *, microbatch_tokens: int) -> float:
    """Negative log-likelihood per learned token, without training."""
    learner = learner_of(model, microbatch_tokens=microbatch_tokens)
    return learner.forward(supervised_batch(examples), NLL())["loss"]


class PreferenceSteps:
    """Updates and judgements of one algorithm on one model."""

    def __init__(
        self,
        model: Any,
        algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
        reference: Any = None,
        *,
        optimizer: MasterAdamW | None = None,
        remembered: Callable[[Sequence[Example]], Column] | None = None,
        microbatch_tokens: int = 100,
    ) -> None:
        self._learner = learner_of(model, optimizer, microbatch_tokens=microbatch_tokens, reference=reference)
        self.objective = objective_for(algorithm, self._learner, remembered)

    def step(self, units: Sequence[Pair] | Sequence[Sequence[Labelled]], *, lr: float) -> dict[str, float]:
        """One update."""
        batch = self.objective.batch(units)
        found = self._learner.forward_backward(batch, self.objective.loss)
        return found | self._learner.optim_step({POLICY: lr}) | dict(batch.scalars)

    def judge(self, units: Sequence[Pair] | Sequence[Sequence[Labelled]]) -> dict[str, float]:
        """Without training."""
        return self.objective.evaluate(units)


def reward_step(
    optimizer: MasterAdamW, model: Any, units: Sequence[Ranked], loss: RewardLoss, *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on rankings."""
    learner = learner_of(model, optimizer, microbatch_tokens=microbatch_tokens)
    return reward_gradient(learner, units, loss) | learner.optim_step({POLICY: lr})


def rating_step(
    optimizer: MasterAdamW, model: Any, units: Sequence[Graded], *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on ratings."""
    learner = learner_of(model, optimizer, microbatch_tokens=microbatch_tokens)
    return learner.forward_backward(rated_batch(units), RatingLoss()) | learner.optim_step({POLICY: lr})
