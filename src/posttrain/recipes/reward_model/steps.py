"""A head that is read at the ends of steps: a process reward model, by binary cross-entropy on labelled steps.

Steps are labelled up to the first wrong one (Uesato et al. 2022, https://arxiv.org/abs/2211.14275; Lightman et al.
2023, https://arxiv.org/abs/2305.20050). Left out: labels by Monte Carlo, and the pretraining on mathematics.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from posttrain.bindings.feedback import STEPS
from posttrain.data.packing import Stepwise
from posttrain.evaluation.pairs import ScoredPair, accuracy, calibration_error, fit_temperature, log_loss
from posttrain.models.heads import Calibration, StepModel, load_step_model
from posttrain.recipes.reward_model.heads import Heads
from posttrain.training.reward import StepLoss, step_batch


class Steps(Heads):
    """As in `Heads`."""

    kind = STEPS

    def loader(self, where: str) -> Callable[..., StepModel]:
        """As in `Heads`."""
        return load_step_model

    def gradient(self, batch: Sequence[Stepwise], seed: int) -> dict[str, float]:
        """As in `Heads`."""
        self.calibration = None
        return self._learner.forward_backward(step_batch(batch, seed=seed), StepLoss())

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """Metrics of held-out steps; calibrates: the score is the log-odds that a step is right."""
        scores = self._learner.scores(STEPS.examples(self._units.heldout))
        logits = [score[: len(unit.right)] for unit, score in zip(self._units.heldout, scores, strict=True)]
        found = step_measures(self._units.heldout, logits)
        if step and self._config.calibrate:
            steps = scored_steps(self._units.heldout, logits)
            self.calibration = Calibration((0.0,), fit_temperature(steps))
            found |= {"temperature": self.calibration.temperature}
            found |= {"calibration_error": calibration_error(steps, self.calibration.temperature)}
        return found


def scored_steps(units: Sequence[Stepwise], logits: Sequence[Sequence[float]]) -> list[ScoredPair]:
    """Each labelled step as a pair of the label that it has and the other one."""
    return [
        ScoredPair((logit if right else -logit,), (0.0,), prompt=number)
        for number, (unit, of_unit) in enumerate(zip(units, logits, strict=True))
        for right, logit in zip(unit.right, of_unit, strict=True)
    ]


def step_measures(units: Sequence[Stepwise], logits: Sequence[Sequence[float]]) -> dict[str, float]:
    """Metrics of labelled steps.

    `accuracy` is the share of steps that are told right from wrong, by reasoning; `first_error` the share of reasonings
    of which the first wrong step is found, or that none is wrong; `wrong` the share of reasonings with one.
    """
    steps = scored_steps(units, logits)
    found = [
        next((place for place, logit in enumerate(of_unit) if logit < 0), None) == _first_wrong(unit)
        for unit, of_unit in zip(units, logits, strict=True)
    ]
    return {
        "loss": log_loss(steps),
        "accuracy": accuracy(steps).value,
        "first_error": fmean(found),
        "wrong": fmean(_first_wrong(unit) is not None for unit in units),
        "calibration_error": calibration_error(steps),
    }


def _first_wrong(unit: Stepwise) -> int | None:
    return unit.right.index(False) if False in unit.right else None
