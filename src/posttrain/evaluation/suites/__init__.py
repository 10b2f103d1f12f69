"""Benchmarks, each in a short file. One line registers another."""

from collections.abc import Mapping

from posttrain.evaluation.suite import Suite
from posttrain.evaluation.suites.gsm8k import GSM8K
from posttrain.evaluation.suites.humaneval import HumanEval
from posttrain.evaluation.suites.ifeval import IFEval
from posttrain.evaluation.suites.math500 import Math500
from posttrain.evaluation.suites.mbpp import MBPP
from posttrain.evaluation.suites.processbench import ProcessBenchCritic

SUITES: Mapping[str, type[Suite]] = {
    "gsm8k": GSM8K,
    "math500": Math500,
    "humaneval": HumanEval,
    "mbpp": MBPP,
    "ifeval": IFEval,
    "processbench": ProcessBenchCritic,
}
"""Every suite that has a name."""
