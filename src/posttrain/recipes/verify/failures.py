"""Item 8: what fails is an error with one cause, and never a score of 0."""

import math
import time
from collections.abc import Callable, Sequence

from posttrain.engine.engine import BatchEngine
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.errors import PosttrainError, RewardError
from posttrain.recipes.verify.item import Item, violations
from posttrain.recipes.verify.subject import Subject
from posttrain.rewards import Weighted, from_function
from posttrain.types import Completion, Engine, Request, Sampling

HANG_S = 5.0
LIMIT_S = 0.3


class _Unplugged(PosttrainError):
    """What the failing engine raises."""


class _Failing(BatchEngine):
    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        raise _Unplugged("the engine is unplugged")


def _raises(completion: str) -> float:
    raise OSError("the judge cannot be reached")


def _hangs(completion: str) -> float:
    time.sleep(HANG_S)
    return 1.0


def _nan(completion: str) -> float:
    return math.nan


def _too_few(completions: list[str]) -> list[float]:
    return [1.0] * (len(completions) - 1)


def failures(subject: Subject) -> Item:
    """Rewards that raise, hang, return NaN or lose a value, and an engine that fails, through training's driver."""
    stop = min(subject.policy.chat.stop_ids)
    fine = ScriptedEngine(lambda request: (stop,), subject.policy.chat.stop_ids)
    cases: list[tuple[Callable[..., object], Engine, type[PosttrainError], str]] = [
        (_raises, fine, RewardError, "the judge cannot be reached"),
        (_hangs, fine, RewardError, "did not finish within"),
        (_nan, fine, RewardError, "nan"),
        (_too_few, fine, RewardError, "_too_few"),
        (_raises, _Failing(), _Unplugged, "the engine is unplugged"),
    ]
    found: list[str] = []
    for reward, engine, kind, cause in cases:
        what = "an engine that fails" if engine is not fine else f"a reward like {reward.__name__}"
        try:
            _attempt(subject, reward, engine)
        except kind as error:
            if cause not in str(error) or "\n" in str(error):
                found.append(f"{what}: the error does not say in one line what failed: {error}")
        except Exception as error:
            found.append(f"{what}: came out as {type(error).__name__}: {error}")
        else:
            found.append(f"{what}: was given a score")
    kinds = "rewards that raise, hang, return NaN or lose a value, and an engine that fails"
    return violations("failures", found, f"{len(cases)} ways to fail are errors with one cause: {kinds}")


def _attempt(subject: Subject, reward: Callable[..., object], engine: Engine) -> None:
    environment = ScoredEnvironment(
        Weighted(((from_function(reward), 1.0),), timeout_s=LIMIT_S if reward is _hangs else 60.0)
    )
    sample_groups(
        environment,
        subject.tasks,
        Players(engine, subject.policy.chat, Sampling(subject.max_new_tokens)),
        completions_per_prompt=2,
        seed=subject.seed,
    )
