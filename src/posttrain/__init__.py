"""posttrain: the whole post-training loop of a language model. Command line: `posttrain --help`.

    import posttrain as pt

    run = pt.run(pt.RL(dataset=rows, reward=score, algorithm=pt.GRPO(kl_coefficient=0), steps=10))
    pt.load(run).chat("3+4=")

Names are loaded when they are first used, so that the import costs milliseconds.
"""

import ast
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.threads import sleep_sooner

if TYPE_CHECKING:  # what type checkers and editors see, and what is read below
    from posttrain import testing as testing
    from posttrain.algorithms import DAPO as DAPO
    from posttrain.algorithms import DPO as DPO
    from posttrain.algorithms import DPOP as DPOP
    from posttrain.algorithms import GRPO as GRPO
    from posttrain.algorithms import GSPO as GSPO
    from posttrain.algorithms import IPO as IPO
    from posttrain.algorithms import IRPO as IRPO
    from posttrain.algorithms import KTO as KTO
    from posttrain.algorithms import OPD as OPD
    from posttrain.algorithms import ORPO as ORPO
    from posttrain.algorithms import PPO as PPO
    from posttrain.algorithms import RAE as RAE
    from posttrain.algorithms import RLOO as RLOO
    from posttrain.algorithms import SPPO as SPPO
    from posttrain.algorithms import TDPO as TDPO
    from posttrain.algorithms import VAPO as VAPO
    from posttrain.algorithms import BucketedGRPO as BucketedGRPO
    from posttrain.algorithms import DrGRPO as DrGRPO
    from posttrain.algorithms import PPOPenalty as PPOPenalty
    from posttrain.algorithms import PPOPtx as PPOPtx
    from posttrain.algorithms import Reinforce as Reinforce
    from posttrain.algorithms import ReinforcePlusPlus as ReinforcePlusPlus
    from posttrain.algorithms import ReMax as ReMax
    from posttrain.algorithms import SimPO as SimPO
    from posttrain.algorithms import StepDPO as StepDPO
    from posttrain.algorithms import VinePPO as VinePPO
    from posttrain.data.heldout import split as split
    from posttrain.environments.env import Environment as Environment
    from posttrain.errors import CallbackError as CallbackError
    from posttrain.errors import CheckpointError as CheckpointError
    from posttrain.errors import DataError as DataError
    from posttrain.errors import EngineError as EngineError
    from posttrain.errors import EpisodeError as EpisodeError
    from posttrain.errors import ModelError as ModelError
    from posttrain.errors import PosttrainError as PosttrainError
    from posttrain.errors import RewardError as RewardError
    from posttrain.errors import TemplateError as TemplateError
    from posttrain.errors import TrainingError as TrainingError
    from posttrain.errors import UserError as UserError
    from posttrain.evaluation.suite import Suite as Suite
    from posttrain.loaded import Loaded as Loaded
    from posttrain.loaded import load as load
    from posttrain.options.audits import Arena as Arena
    from posttrain.options.audits import AuditJudge as AuditJudge
    from posttrain.options.audits import AuditReward as AuditReward
    from posttrain.options.audits import CompareRewards as CompareRewards
    from posttrain.options.cluster import AsyncOptions as Cluster  # noqa: F401
    from posttrain.options.evaluation import Compare as Compare
    from posttrain.options.evaluation import Evaluate as Evaluate
    from posttrain.options.evaluation import EvaluateReward as EvaluateReward
    from posttrain.options.evaluation import Generate as Generate
    from posttrain.options.evaluation import ScoreCompletions as ScoreCompletions
    from posttrain.options.evaluation import Solve as Solve
    from posttrain.options.judging import JudgeAnswers as JudgeAnswers
    from posttrain.options.judging import Revise as Revise
    from posttrain.options.online import RL as RL
    from posttrain.options.online import BestOfN as BestOfN
    from posttrain.options.online import OnlinePreference as OnlinePreference
    from posttrain.options.training import SFT as SFT
    from posttrain.options.training import Preferences as Preference  # noqa: F401
    from posttrain.options.training import Scoring as RewardModel  # noqa: F401
    from posttrain.rewards.custom import reward_function as reward_function
    from posttrain.runs.callback import Callback as Callback
    from posttrain.runs.inputs import InputsChanged as InputsChanged
    from posttrain.runs.result import RunResult as RunResult
    from posttrain.types import Message as Message
    from posttrain.types import Score as Score
    from posttrain.types import Task as Task
    from posttrain.verbs import resume as resume
    from posttrain.verbs import run as run

_HOME = {
    alias.asname: (str(node.module), alias.name)
    for node in ast.walk(ast.parse(Path(__file__).read_bytes()))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname
}
"""By name: its module, and what it is called there; from what stands above, so that each name stands once."""
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

sleep_sooner()
# In a notebook tqdm, which transformers imports, asks for ipywidgets; the progress of runs needs none.
warnings.filterwarnings("ignore", "IProgress not found")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from posttrain.errors import unknown

        raise AttributeError(str(unknown("name in posttrain:", name, __all__, see="dir(posttrain) lists all")))
    module, own = _HOME[name]
    return import_module(f"posttrain.{own}") if module == "posttrain" else getattr(import_module(module), own)


def __dir__() -> list[str]:
    return __all__
