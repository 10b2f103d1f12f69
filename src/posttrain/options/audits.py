"""Forms of the commands that audit rewards, judges and policies, or compare them: docs/audits.md."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from posttrain.options.judging import Scores
from posttrain.options.kinds import Judge, Rewards, Rows
from posttrain.options.option import Range


@dataclass(frozen=True)
class AuditReward(Scores):
    """Attack a reward before a run: what it pays that is wrong, and refuses that is right."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns split limit output",
        "rewards": "reward reward_model judge judge_prompt",
        "evaluation": "max_paid max_refused",
        "run": "precision seed",
    }
    dataset: Rows = ""
    """Tasks: a file, folder, glob, hub id, or gym:NAME?option=value. Without answers only attacks are tried."""
    reward: Rewards = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME; the sum is audited."""
    output: str = ""
    """Output file (.jsonl) of all texts with what they earn."""
    _: KW_ONLY
    limit: Annotated[int, Range(1)] = 100
    """Maximum number of tasks."""
    max_paid: Annotated[float, Range(0, 1)] = 0.02
    """Fraction of tasks on which an attack may be paid. Above it the attack is a finding, and the exit code 1."""
    max_refused: Annotated[float, Range(0, 1)] = 0.1
    """Fraction of tasks on which a right answer may be refused. Of each way to write it, in places where the reward
    reads answers."""


@dataclass(frozen=True)
class CompareRewards(Scores):
    """Compare rewards on the same stored samples: AUC, best-of-n accuracy, cost, attacks that are paid."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "samples truth columns split limit",
        "rewards": "reward reward_model judge judge_prompt",
        "evaluation": "attack_tasks",
        "run": "precision seed",
    }
    samples: Rows = ""
    """Samples: a file or run. Its samples.jsonl, or the output of evaluate or best-of-n; several to each prompt."""
    reward: Rewards = ""
    """Rewards to compare, such as "numbers tags mine.py:score". Each by itself, beside each judge and reward model."""
    _: KW_ONLY
    truth: str = ""
    """What says that a sample is right: a column, or one of the stored rewards. Default: the first there is of right,
    correct, label, gold."""
    attack_tasks: Annotated[int, Range(0)] = 20
    """Number of tasks on which each reward is attacked, 0: none. As posttrain audit-reward does."""


@dataclass(frozen=True)
class AuditJudge(Scores):
    """Audit a judge or reward model on labelled pairs: agreement, calibration, biases, texts that fool it."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset ties ratings columns split limit own pairs",
        "rewards": "judge judge_prompt reward reward_model",
        "evaluation": "max_fooled",
        "run": "precision seed",
    }
    dataset: Rows = ""
    """Labelled pairs: a file, folder, glob or hub id. In any layout that training reads; a column models may name
    who wrote both, as annotate export does."""
    _: KW_ONLY
    ties: Rows = ""
    """Tied pairs (rows with `tie`). A file as annotate export writes it with `to="ties"`."""
    ratings: Rows = ""
    """Rated answers, such as GPT-4's scores; for the rank correlation. In any layout that reward-model reads; Kendall's
    tau-b of the judge's scores with the ratings of each attribute."""
    reward: Rewards = ""
    """A reward to audit in place of a judge, such as FILE.py:NAME."""
    own: str = ""
    """Name of the model that judges, in the column models; for self-preference."""
    pairs: str = ""
    """Output file (.jsonl) of counterfactual pairs, to train a reward model on. The chosen and the rejected response in
    all styles."""
    max_fooled: Annotated[float, Range(0, 1)] = 0.1
    """Fraction of prompts on which a text that says nothing may win. Against the chosen response; also of pairs whose
    preference other words may flip. Above it the exit code is 1."""


@dataclass(frozen=True)
class Arena(Scores):
    """Compare policies by a judge: win rates, length-controlled ones, a leaderboard, cycles."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "answers dataset columns split limit output",
        "model": "models baseline",
        "rewards": "judge judge_prompt reward reward_model",
        "sampling": "temperature max_new_tokens",
        "run": "precision seed",
    }
    answers: str = ""
    """Files of answers, or of comparisons that were judged; space-separated. Answers: prompt, completion and model;
    comparisons as AlpacaEval or annotate export writes them."""
    dataset: Rows = ""
    """Prompts that `models` answer: a file, folder, glob or hub id."""
    output: str = ""
    """Output file (.jsonl) of all comparisons; `answers` reads it again."""
    _: KW_ONLY
    models: Judge = ""
    """Policies: NAME=MODEL, NAME=RUN or NAME=URL#MODEL, space-separated."""
    baseline: str = ""
    """Policy that the others are compared with; default: the first."""
    reward: Rewards = ""
    """A reward that judges, such as FILE.py:NAME."""
    temperature: Annotated[float, Range(0)] = 0.0
    """Sampling temperature of the policies, 0: greedy."""
    max_new_tokens: Annotated[int, Range(1)] = 256
    """Maximum tokens per answer."""
