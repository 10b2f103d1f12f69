"""Heads of scores, by Bradley and Terry's likelihood of preference pairs.

The prompt of a ranking is computed once for all its pairs. An ensemble has several heads on one trunk, each trained on
a bootstrap sample of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from posttrain.bindings.feedback import RANKINGS, Units
from posttrain.data import ChatFormat
from posttrain.data.order import seed_for
from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.evaluation.pairs import fit_temperature, measures, scored_pairs
from posttrain.models.heads import Calibration, RewardModel, load_reward_model, members_of, with_length_head
from posttrain.options.training import PreferenceHeads, Scoring
from posttrain.recipes.reward_model.heads import Heads
from posttrain.training.reward import RewardLoss, reward_gradient


class Preference(Heads):
    """As in `Heads`."""

    options = PreferenceHeads
    kind = RANKINGS

    def __init__(self, config: Scoring) -> None:
        super().__init__(config)
        self._members = config.ensemble
        self._loss = RewardLoss(config.label_smoothing, config.margin, config.center_rewards, config.length_debias)
        self.reads = int(config.length_debias > 0)  # a batch is scored once before its update

    def loader(self, where: str) -> Callable[..., RewardModel]:
        """As in `Heads`."""
        asked = self._config.ensemble if self._config.ensemble > 1 else 0
        self._members = asked or members_of(where)
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
        scored = scored_pairs(self._units.heldout, [one[: self._members] for one in scores])
        if not (step and self._config.calibrate):
            return measures(scored)
        members = zip(*(side for pair in scored for side in (pair.chosen, pair.rejected)), strict=True)
        self.calibration = Calibration(tuple(fmean(one) for one in members), fit_temperature(scored))
        return measures(scored, self.calibration.temperature)


def _load(where: str, *, members: int, length_head: bool, seed: int, **how: Any) -> RewardModel:
    """The model in the folder `where` with fresh heads, or its own."""
    heads = load_reward_model(where, members=members, seed=seed, **how)
    return with_length_head(heads, seed=seed) if length_head else heads


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
