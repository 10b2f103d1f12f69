"""What a step cost."""

import time

from posttrain.runs.memory import peak_gb


def step_cost(began: float, tokens: float) -> dict[str, float]:
    """Seconds since `began` (of `time.perf_counter`), tokens per second, and the most memory held so far."""
    seconds = time.perf_counter() - began
    return {"seconds/step": seconds, "tokens_per_second": tokens / seconds, "memory_gb": peak_gb()}


def rollout_cost(began: float, sampled: float, tokens: int) -> dict[str, float]:
    """Seconds of sampling `tokens` (from `began` to `sampled`) and of learning since, and the most memory held."""
    now = time.perf_counter()
    return {
        "seconds/rollout": sampled - began,
        "seconds/train": now - sampled,
        "seconds/step": now - began,
        "tokens_per_second": tokens / (sampled - began),
        "memory_gb": peak_gb(),
    }


def overlapped_cost(began: float, sampled: float, tokens: float) -> dict[str, float]:
    """The same where `tokens` were sampled while earlier steps were trained: `seconds/rollout` is what training waited.

    Tokens per second are those of the whole step.
    """
    now = time.perf_counter()
    parts = {"seconds/rollout": sampled - began, "seconds/train": now - sampled}
    return {**parts, **step_cost(began, tokens)}
