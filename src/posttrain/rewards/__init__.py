"""Rewards: named scores of episodes."""

from posttrain.rewards.binding import REWARDS
from posttrain.rewards.combine import DEFAULT_TIMEOUT_S, Weighted, named_in, parse_rewards
from posttrain.rewards.context import RewardContext
from posttrain.rewards.custom import Ask, CustomReward, Source, from_function, reward_function
from posttrain.rewards.judges.pointwise import Judge
from posttrain.rewards.judges.prompt import JudgePrompt, read_prompt
from posttrain.rewards.learned import COMBINATIONS, CachedScores, Classifier, Disagreement, LearnedReward, StepReward
from posttrain.rewards.loading import load_again, load_reward
from posttrain.rewards.reward import ROLES, EpisodeReward, Named, Reward, apart, score_all, score_each, scoring
from posttrain.rewards.rules.language import LanguageConsistency
from posttrain.rewards.rules.length import LengthTarget, SoftOverlong
from posttrain.rewards.rules.repetition import Repetition
from posttrain.rewards.rules.steps import StepDiversity
from posttrain.rewards.rules.tags import Tags
from posttrain.rewards.rules.verification import VerificationPhrases
from posttrain.rewards.verifiers.choice import ChoiceVerifier
from posttrain.rewards.verifiers.exact import ExactVerifier
from posttrain.rewards.verifiers.extraction import AnswerIn, extract
from posttrain.rewards.verifiers.gym import GymVerifier
from posttrain.rewards.verifiers.math import MathVerifier
from posttrain.rewards.verifiers.numbers import NumberVerifier
from posttrain.rewards.verifiers.pool import TIME_LIMITS, VERDICTS
from posttrain.rewards.verifiers.worker import TIMED_OUT

__all__ = [
    "COMBINATIONS",
    "DEFAULT_TIMEOUT_S",
    "REWARDS",
    "ROLES",
    "TIMED_OUT",
    "TIME_LIMITS",
    "VERDICTS",
    "AnswerIn",
    "Ask",
    "CachedScores",
    "ChoiceVerifier",
    "Classifier",
    "CustomReward",
    "Disagreement",
    "EpisodeReward",
    "ExactVerifier",
    "GymVerifier",
    "Judge",
    "JudgePrompt",
    "LanguageConsistency",
    "LearnedReward",
    "LengthTarget",
    "MathVerifier",
    "Named",
    "NumberVerifier",
    "Repetition",
    "Reward",
    "RewardContext",
    "SoftOverlong",
    "Source",
    "StepDiversity",
    "StepReward",
    "Tags",
    "VerificationPhrases",
    "Weighted",
    "apart",
    "extract",
    "from_function",
    "load_again",
    "load_reward",
    "named_in",
    "parse_rewards",
    "read_prompt",
    "reward_function",
    "score_all",
    "score_each",
    "scoring",
]
