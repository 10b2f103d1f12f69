"""What the states of completions are worth, by Monte Carlo continuations."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from posttrain.algorithms.inputs import StateValues
from posttrain.training.inputs.context import Columns, Context, flat, given
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = True


def columns(need: StateValues, groups: Sequence[Group], context: Context) -> Columns:
    """`values_N` and `step_N`, [N] each."""
    states = given(context.state_values, "continuations")(groups, need)
    steps = [step for state in states for step in state.steps]
    return {"values_N": flat([state.values for state in states]), "step_N": torch.tensor(steps)}


def sampled(need: StateValues, load: Load) -> tuple[Load, ...]:
    """Continuations of prompts, in which all completions begin, and of later states.

    There are taken to be as many states as there may be, evenly spread over a completion: where a step is a line, how
    many it has shows only when it is sampled.
    """
    steps = min(need.most, math.ceil(load.completion_tokens / max(1, need.step_tokens)))
    begun, done = load.sequences * (steps - 1), load.completion_tokens // 2
    prompt, completion = load.prompt_tokens + done, load.completion_tokens - done
    later = replace(load, prompts=begun, group=need.samples, prompt_tokens=prompt, completion_tokens=completion)
    return replace(load, group=need.samples), later
