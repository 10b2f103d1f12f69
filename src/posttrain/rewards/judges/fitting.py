"""Weights of a rubric's criteria, fitted to labelled pairs: propositions of rule-based rewards."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from posttrain.errors import UserError
from posttrain.rewards.judges.kinds import Rubric, criteria
from posttrain.rewards.judges.prompt import JudgePrompt
from posttrain.types import Task

PENALTY = 1.0  # of w^2 / 2: a standard normal prior of each weight, in log odds of a pair


def shared_criteria(prompt: JudgePrompt, tasks: Sequence[Task]) -> list[str]:
    """The criteria of the rubric that all tasks have; raises `UserError` where they have others, or no such prompt."""
    if type(prompt.kind) is not Rubric:
        raise UserError('`fit_weights` is of a judge of the kind rubric; pass `judge_prompt="rubric"`, or such a file')
    found = [[text for text, _ in criteria(task, prompt.kind.rubric)] for task in tasks]
    if other := next((task for task, texts in zip(tasks, found, strict=True) if texts != found[0]), None):
        raise UserError(
            f"`fit_weights` needs the same criteria in every row; {other.id} has others than {tasks[0].id}; put them "
            "into a prompt file: `rubric: [...]`"
        )
    return found[0]


def differences_of(labels: Sequence[int], met: Sequence[str]) -> list[list[float]]:
    """How the better answer of each labelled pair differs from the worse one, criterion by criterion.

    Args:
        labels: of each two answers to a task in order, 1 if the first is better, -1 if the second, 0 without a label.
        met: the criteria that each answer meets, as a judge of the kind `Rubric` writes them.

    Example:
        >>> differences_of([1], ["1 1", "1 0"])
        [[0.0, 1.0]]
    """
    answers = [[float(value) for value in one.split()] for one in met]
    pairs = zip(labels, combinations(answers, 2), strict=True)
    return [[label * (a - b) for a, b in zip(*both, strict=True)] for label, both in pairs if label]


def fitted_weights(differences: Sequence[Sequence[float]]) -> list[float]:
    """The weights by which the chosen answers of pairs score highest, in float64.

        min_w  sum_i log(1 + exp(-w . d_i)) + |w|^2 / 2,   d_i = c(chosen_i) - c(rejected_i)

    c_j says whether an answer meets proposition j, so that the score w . c is linear, as in Rule Based Rewards (Mu et
    al. 2024, https://arxiv.org/abs/2411.01111), which fits it with a hinge loss, added to a reward model. Newton's
    method; the loss is strictly convex. Raises `UserError` where no pair differs, or no weight is above 0.

    Args:
        differences: one row for each pair, one number for each criterion.

    Example:
        >>> round(fitted_weights([[1]] * 900 + [[-1]] * 100)[0], 2)  # log 9 = 2.20 without the prior
        2.17
    """
    d_NJ = np.asarray(differences, dtype=np.float64)
    if not d_NJ.any():
        raise UserError(
            "`fit_weights` needs labelled pairs whose answers the judge finds different in one criterion or more; "
            "there is none"
        )
    w_J = np.zeros(d_NJ.shape[1])
    for _ in range(100):
        doubt_N = 0.5 * (1 - np.tanh(d_NJ @ w_J / 2))  # sigmoid(-w . d)
        gradient_J = PENALTY * w_J - d_NJ.T @ doubt_N
        curvature_JJ = (d_NJ.T * (doubt_N * (1 - doubt_N))) @ d_NJ + PENALTY * np.eye(len(w_J))
        w_J -= np.linalg.solve(curvature_JJ, gradient_J)
        if np.abs(gradient_J).max() < 1e-10 * len(d_NJ):
            break
    weights = [float(w) for w in w_J]
    if max(weights) <= 0:
        raise UserError(
            "`fit_weights` found no criterion that chosen answers meet more often than rejected ones, and a rubric "
            "needs one of a weight above 0; word one as a merit, and try again"
        )
    return weights
