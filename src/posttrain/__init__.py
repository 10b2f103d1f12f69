"""posttrain: the whole post-training loop of a language model. Command line: `posttrain --help`.

    import posttrain as pt

    run = pt.run(pt.RL(dataset=rows, reward=score, algorithm=pt.GRPO(kl_coefficient=0), steps=10))
    pt.load(run).chat("3+4=")

Names are loaded when they are first used, so that the import costs milliseconds.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from posttrain.threads import sleep_sooner

if TYPE_CHECKING:  # what type checkers and editors see; tests/test_public.py holds both lists together
    from posttrain import testing as testing
    from posttrain.algorithms.dapo import DAPO as DAPO
    from posttrain.algorithms.dpo import DPO as DPO
    from posttrain.algorithms.dpop import DPOP as DPOP
    from posttrain.algorithms.dr_grpo import DrGRPO as DrGRPO
    from posttrain.algorithms.grpo import GRPO as GRPO
    from posttrain.algorithms.grpo_bucketed import BucketedGRPO as BucketedGRPO
    from posttrain.algorithms.gspo import GSPO as GSPO
    from posttrain.algorithms.ipo import IPO as IPO
    from posttrain.algorithms.irpo import IRPO as IRPO
    from posttrain.algorithms.kto import KTO as KTO
    from posttrain.algorithms.opd import OPD as OPD
    from posttrain.algorithms.orpo import ORPO as ORPO
    from posttrain.algorithms.ppo import PPO as PPO
    from posttrain.algorithms.ppo_penalty import PPOPenalty as PPOPenalty
    from posttrain.algorithms.ppo_ptx import PPOPtx as PPOPtx
    from posttrain.algorithms.rae import RAE as RAE
    from posttrain.algorithms.reinforce import Reinforce as Reinforce
    from posttrain.algorithms.reinforce_pp import ReinforcePlusPlus as ReinforcePlusPlus
    from posttrain.algorithms.remax import ReMax as ReMax
    from posttrain.algorithms.rloo import RLOO as RLOO
    from posttrain.algorithms.simpo import SimPO as SimPO
    from posttrain.algorithms.sppo import SPPO as SPPO
    from posttrain.algorithms.step_dpo import StepDPO as StepDPO
    from posttrain.algorithms.tdpo import TDPO as TDPO
    from posttrain.algorithms.vapo import VAPO as VAPO
    from posttrain.algorithms.vineppo import VinePPO as VinePPO
    from posttrain.data.heldout import split as split
    from posttrain.environments.env import Environment as Environment
    from posttrain.errors import PosttrainError as PosttrainError
    from posttrain.errors import UserError as UserError
    from posttrain.loaded import Loaded as Loaded
    from posttrain.loaded import load as load
    from posttrain.options.cluster import AsyncOptions as Cluster  # noqa: F401
    from posttrain.options.evaluation import Compare as Compare
    from posttrain.options.evaluation import Evaluate as Evaluate
    from posttrain.options.evaluation import EvaluateReward as EvaluateReward
    from posttrain.options.evaluation import Generate as Generate
    from posttrain.options.evaluation import ScoreCompletions as ScoreCompletions
    from posttrain.options.online import RL as RL
    from posttrain.options.online import BestOfN as BestOfN
    from posttrain.options.online import OnlinePreference as OnlinePreference
    from posttrain.options.training import SFT as SFT
    from posttrain.options.training import Preferences as Preference  # noqa: F401
    from posttrain.options.training import Scoring as RewardModel  # noqa: F401
    from posttrain.rewards.custom import reward_function as reward_function
    from posttrain.session.callback import Callback as Callback
    from posttrain.session.result import RunResult as RunResult
    from posttrain.types import Message as Message
    from posttrain.types import Score as Score
    from posttrain.types import Task as Task
    from posttrain.verbs import resume as resume
    from posttrain.verbs import run as run

_ALGORITHMS = {
    **{"DAPO": "dapo", "DPO": "dpo", "DPOP": "dpop", "DrGRPO": "dr_grpo", "GRPO": "grpo", "GSPO": "gspo"},
    **{"BucketedGRPO": "grpo_bucketed", "IPO": "ipo", "IRPO": "irpo", "KTO": "kto", "OPD": "opd", "ORPO": "orpo"},
    **{"PPO": "ppo", "PPOPenalty": "ppo_penalty", "PPOPtx": "ppo_ptx", "RAE": "rae", "Reinforce": "reinforce"},
    **{"ReinforcePlusPlus": "reinforce_pp", "ReMax": "remax", "RLOO": "rloo", "SimPO": "simpo", "SPPO": "sppo"},
    **{"StepDPO": "step_dpo", "TDPO": "tdpo", "VAPO": "vapo", "VinePPO": "vineppo"},
}
_HOME = {
    **{name: f"algorithms.{module}" for name, module in _ALGORITHMS.items()},
    **dict.fromkeys(("SFT",), "options.training"),
    "Preference": "options.training:Preferences",
    "RewardModel": "options.training:Scoring",
    **dict.fromkeys(("RL", "OnlinePreference", "BestOfN"), "options.online"),
    **dict.fromkeys(("Evaluate", "Compare", "EvaluateReward", "Generate", "ScoreCompletions"), "options.evaluation"),
    "Cluster": "options.cluster:AsyncOptions",
    **dict.fromkeys(("run", "resume"), "verbs"),
    **dict.fromkeys(("load", "Loaded"), "loaded"),
    **dict.fromkeys(("Message", "Score", "Task"), "types"),
    **dict.fromkeys(("PosttrainError", "UserError"), "errors"),
    "split": "data.heldout",
    "Environment": "environments.env",
    "reward_function": "rewards.custom",
    "Callback": "session.callback",
    "RunResult": "session.result",
    "testing": "testing:",
}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

sleep_sooner()
# In a notebook tqdm, which transformers imports, asks for ipywidgets; the progress of runs needs none.
warnings.filterwarnings("ignore", "IProgress not found")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"posttrain has no {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _HOME[name].partition(":")
    found = import_module(f"posttrain.{module}")
    return getattr(found, attribute or name) if ":" not in _HOME[name] or attribute else found


def __dir__() -> list[str]:
    return __all__
