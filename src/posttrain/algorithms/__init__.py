"""One named algorithm is one short file; one line here registers it."""

from collections.abc import Callable
from typing import TypeVar

from posttrain import errors
from posttrain.algorithms.algorithm import (
    Algorithm,
    OnlineAlgorithm,
    PreferenceAlgorithm,
    SupervisedAlgorithm,
    UnpairedAlgorithm,
)
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.clip_cov import ClipCov
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dft import DFT
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpop import DPOP
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.gdpo import GDPO
from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.gmpo import GMPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.grpo_bucketed import BucketedGRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.irpo import IRPO
from posttrain.algorithms.kl_cov import KLCov
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.maxrl import MaxRL
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.pass_at_k import PassAtK
from posttrain.algorithms.pav import PAV
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.ppo_penalty import PPOPenalty
from posttrain.algorithms.ppo_ptx import PPOPtx
from posttrain.algorithms.prime import PRIME
from posttrain.algorithms.rae import RAE
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.reinforce_pp import ReinforcePlusPlus
from posttrain.algorithms.remax import ReMax
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.sapo import SAPO
from posttrain.algorithms.sft import MaximumLikelihood
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sppo import SPPO
from posttrain.algorithms.step_dpo import StepDPO
from posttrain.algorithms.tdpo import TDPO
from posttrain.algorithms.vapo import VAPO
from posttrain.algorithms.vineppo import VinePPO

ONLINE: dict[str, Callable[..., OnlineAlgorithm]] = {
    "reinforce": Reinforce,
    "ppo": PPO,
    "ppo-penalty": PPOPenalty,
    "ppo-ptx": PPOPtx,
    "vapo": VAPO,
    "vineppo": VinePPO,
    "rloo": RLOO,
    "remax": ReMax,
    "reinforce++": ReinforcePlusPlus,
    "grpo": GRPO,
    "dr-grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "grpo-bucketed": BucketedGRPO,
    "rae": RAE,
    "opd": OPD,
    "gkd": GKD,
    "maxrl": MaxRL,
    "pass-at-k": PassAtK,
    "gdpo": GDPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "gmpo": GMPO,
    "dppo": DPPO,
    "clip-cov": ClipCov,
    "kl-cov": KLCov,
    "prime": PRIME,
    "pav": PAV,
}
"""Online algorithms, trained on the policy's own samples. Maps a name to the dataclass of hyperparameters."""

PREFERENCE: dict[str, Callable[..., PreferenceAlgorithm | UnpairedAlgorithm]] = {
    "dpo": DPO,
    "ipo": IPO,
    "kto": KTO,
    "orpo": ORPO,
    "simpo": SimPO,
    "dpop": DPOP,
    "tdpo": TDPO,
    "step-dpo": StepDPO,
    "irpo": IRPO,
    "sppo": SPPO,
}
"""Offline preference algorithms: pairwise (chosen, rejected) or unpaired (good or bad) feedback."""

SUPERVISED: dict[str, Callable[..., SupervisedAlgorithm]] = {"sft": MaximumLikelihood, "dft": DFT}
"""Losses of demonstrations."""

A = TypeVar("A", bound=Algorithm)

COMMANDS: dict[str, str] = {"online": "rl", "preference": "preference", "supervised": "sft"}
"""By family: the command that runs its algorithms."""

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {**ONLINE, **PREFERENCE, **SUPERVISED}


def get(name: str) -> Callable[..., Algorithm]:
    """Find an algorithm by its name; raises `UserError`, with the nearest name, for one that does not exist."""
    return _find(name, ALGORITHMS)


def online(name: str) -> Callable[..., OnlineAlgorithm]:
    """As `get`, for `posttrain rl`; for a name of another family the error names the command that runs it."""
    return _find(name, ONLINE)


def preference(name: str) -> Callable[..., PreferenceAlgorithm | UnpairedAlgorithm]:
    """As `get`, for `posttrain preference`."""
    return _find(name, PREFERENCE)


def _find(name: str, among: dict[str, Callable[..., A]]) -> Callable[..., A]:
    if name in among:
        return among[name]
    if name in ALGORITHMS:
        command = COMMANDS[ALGORITHMS[name]().family]
        raise errors.UserError(
            f'{name} is an algorithm of another command; type: posttrain {command} `algorithm="{name}"`'
        )
    raise errors.unknown("algorithm", name, among)
