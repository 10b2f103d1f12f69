"""Heads that are read at the last token of a response or of each step: what they read, how they learn, what is saved.

Scores learn by Bradley and Terry's likelihood of preference pairs; the prompt of a ranking is computed once for all its
pairs. A process reward model learns by binary cross-entropy on steps, labelled up to the first wrong one (Uesato et al.
2022, https://arxiv.org/abs/2211.14275; Lightman et al. 2023, https://arxiv.org/abs/2305.20050); labels by Monte Carlo
are those of `best-of-n` (evaluation/step_labels.py). Left out: the pretraining on mathematics.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from posttrain.bindings import feedback
from posttrain.bindings.feedback import RANKINGS, STEPS, Feedback, Units
from posttrain.data import ChatFormat, controls, save_for_scores, seed_for
from posttrain.data.packing import Ranked, Stepwise
from posttrain.errors import UserError
from posttrain.evaluation import pairs
from posttrain.evaluation.steps import scored_steps, step_measures
from posttrain.models import heads
from posttrain.options.option import Form
from posttrain.options.training import PreferenceHeads, Scoring
from posttrain.training.learner import Learner
from posttrain.training.reward import RewardLoss, StepLoss, reward_gradient, step_batch


class Heads:
    """The base of all kinds. Made from the options, it checks those and reads the data, before anything is loaded.

    What checkpoints keep, too: `save` and `restore` are those of `Trained`.
    """

    options: ClassVar[type] = Form
    """The group of options that are for heads of this kind alone."""
    kind: ClassVar[Feedback[Any, Any]]
    """The feedback that they are trained on."""
    on_clusters: ClassVar[bool] = True
    """Whether several processes can train them."""

    reads: int = 0  # passes over a batch that only read it
    names: tuple[str, ...] = ()  # of the attributes that they rate
    evaluated: tuple[bool, bool]  # before the first step, after the last one
    calibration: heads.Calibration | None = None  # of the weights as they are now, to be saved with them

    def __init__(self, config: Scoring) -> None:
        self._config, self._sides = config, feedback.read(config, self.kind)

    def tokenize(self, chat: ChatFormat, context: int) -> Units[Any]:
        """What they are trained on, and what is held out, as tokens."""
        self._chat, self._units = chat, feedback.tokenize(self._config, self.kind, self._sides, chat, context)
        self.evaluated = bool(self._units.heldout), bool(self._units.heldout)
        return self._units

    def loader(self, where: str) -> Callable[..., Any]:
        """Loads the model in the folder `where` with such heads; it is sent to other processes."""
        raise NotImplementedError

    def begin(self, learner: Learner) -> None:
        """Take the learner of what was loaded."""
        self._learner = learner

    def gradient(self, batch: Sequence[Any], seed: int) -> dict[str, float]:
        """Accumulate the gradient of a batch; its loss and metrics. What was fitted to the weights is void then."""
        raise NotImplementedError

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """Metrics of what is held out; fits what depends on the weights as they are now."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder, and the state of the learner."""
        self._learner.save(folder)
        ends = {example.continuation[-1] for example in self.kind.examples(self._units.learned)}
        padding = save_for_scores(self._chat.tokenizer, folder, ends)
        heads.complete(folder, padding=padding, calibration=self.calibration)

    def restore(self, folder: Path) -> None:
        """Restore the state of the learner."""
        self._learner.restore(folder)


class Preference(Heads):
    """As in `Heads`: one score, or an ensemble, each member trained on a bootstrap sample of its own."""

    options = PreferenceHeads
    kind = RANKINGS

    def __init__(self, config: Scoring) -> None:
        super().__init__(config)
        if config.reward_control:
            sides = self._sides
            learned = controls.pairs_swapped(sides.learned, seed_for(config.seed, "control"))
            notes = (*sides.notes, f"{controls.SHUFFLED} which of a pair was chosen")
            self._sides = replace(sides, learned=learned, notes=notes)
        self._members = config.ensemble
        self._loss = RewardLoss(config.label_smoothing, config.margin, config.center_rewards, config.length_debias)
        self.reads = int(config.length_debias > 0)  # a batch is scored once before its update

    def loader(self, where: str) -> Callable[..., heads.RewardModel]:
        """As in `Heads`."""
        asked = self._config.ensemble if self._config.ensemble > 1 else 0
        self._members = asked or heads.members_of(where)
        if self._config.length_debias and self._members > 1:
            raise UserError(f"`length_debias` needs a single head; {self._config.model} has {self._members}")
        return partial(_load, members=asked, length_head=self._config.length_debias > 0)

    def tokenize(self, chat: ChatFormat, context: int) -> Units[Ranked]:
        """As in `Heads`."""
        config, units, notes = self._config, super().tokenize(chat, context), list[str]()
        strengths = {strength for unit in units.learned for *_, strength in unit.pairs}
        if len(strengths) > 1 and not config.margin:
            notes.append("the pairs say how much better the chosen response is; `margin=1` learns from that, too")
        if config.margin and len(strengths) == 1:
            notes.append(f"all pairs are of strength {strengths.pop():g}; `margin` asks the same of each of them")
        if self._members > 1:
            units = replace(units, learned=_in_bags(units.learned, self._members, config.seed))
            if not (units.heldout and config.calibrate):
                notes.append(
                    "not calibrated on held-out pairs, the members' scores do not compare; only their mean is of use"
                )
        return replace(units, notes=(*units.notes, *notes))

    def gradient(self, batch: Sequence[Ranked], seed: int) -> dict[str, float]:
        """As in `Heads`."""
        self.calibration = None
        return reward_gradient(self._learner, batch, self._loss, seed=seed)

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """Metrics of held-out pairs; calibrates: 0 is the mean of a response, and a difference its log-odds."""
        scores = self._learner.scores(RANKINGS.examples(self._units.heldout))
        scored = pairs.scored_pairs(self._units.heldout, [one[: self._members] for one in scores])
        if not (step and self._config.calibrate):
            return pairs.measures(scored)
        members = zip(*(side for pair in scored for side in (pair.chosen, pair.rejected)), strict=True)
        self.calibration = heads.Calibration(tuple(fmean(one) for one in members), pairs.fit_temperature(scored))
        return pairs.measures(scored, self.calibration.temperature)


def _load(where: str, *, members: int, length_head: bool, seed: int, **how: Any) -> heads.RewardModel:
    """The model in the folder `where` with fresh heads, or its own."""
    found = heads.load_reward_model(where, members=members, seed=seed, **how)
    return heads.with_length_head(found, seed=seed) if length_head else found


def _in_bags(units: Sequence[Ranked], members: int, seed: int) -> list[Ranked]:
    """Each unit with how often each member meets it: as in a sample of as many units with replacement.

    The number is Poisson-distributed with mean 1, drawn for each unit alone (Oza and Russell 2001, "Online Bagging and
    Boosting"). Members that learned from the same pairs on the same trunk would agree wherever they are wrong.
    """
    found: list[Ranked] = []
    for number, unit in enumerate(units):
        bag = np.random.default_rng(seed_for(seed, "bag", number)).poisson(1.0, members)
        found.append(unit._replace(bag=tuple(float(times) for times in bag)))
    return found


class Steps(Heads):
    """As in `Heads`: one, which says of each step whether it is right."""

    kind = STEPS

    def tokenize(self, chat: ChatFormat, context: int) -> Units[Stepwise]:
        """As in `Heads`."""
        units = super().tokenize(chat, context)
        self._shares = any(0 < right < 1 for unit in units.heldout for right in unit.right)
        if self._shares and self._config.calibrate:
            note = "not calibrated: held-out labels are shares, to which no temperature is fitted"
            return replace(units, notes=(*units.notes, note))
        return units

    def loader(self, where: str) -> Callable[..., heads.StepModel]:
        """As in `Heads`."""
        return heads.load_step_model

    def gradient(self, batch: Sequence[Stepwise], seed: int) -> dict[str, float]:
        """As in `Heads`."""
        self.calibration = None
        return self._learner.forward_backward(step_batch(batch, seed=seed), StepLoss())

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """Metrics of held-out steps; calibrates: the score is the log-odds that a step is right."""
        scores = self._learner.scores(STEPS.examples(self._units.heldout))
        logits = [score[: len(unit.right)] for unit, score in zip(self._units.heldout, scores, strict=True)]
        found = step_measures(self._units.heldout, logits)
        if step and self._config.calibrate and not self._shares:  # rounded to 0 and 1 they would make it too sure
            steps = scored_steps(self._units.heldout, logits)
            self.calibration = heads.Calibration((0.0,), pairs.fit_temperature(steps))
            found |= {"temperature": self.calibration.temperature}
            found |= {"calibration_error": pairs.calibration_error(steps, self.calibration.temperature)}
        return found
