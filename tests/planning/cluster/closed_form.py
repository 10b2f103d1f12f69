"""A synchronous step by arithmetic alone: another reading of the cost model, which the simulation must agree with."""

import math

from posttrain.planning.cluster.coefficients import Costs, Lengths, Workload


def synchronous(costs: Costs, work: Workload, groups: list[Lengths]) -> float:
    """Seconds of a synchronous step, if every sampler has a slot for each of its sequences.

    Sequences begin together, in equal shares, and nothing joins them. With n(m) sequences left after m steps, a
    sampler takes the integral of t(n(m), c(m)), which is

        begin + prompts + step max T + sequence sum T + cached sum (p T + T^2 / 2)

    over its own lengths T with prompts of p tokens. The batch waits for the slowest sampler; then come scoring, update
    and sync.
    """
    slowest = 0.0
    for share in shares(groups, costs.samplers):
        lengths = [length for _, length in share]
        if not lengths:
            continue
        assert len(lengths) <= costs.decoding.slots, "sequences that wait for a slot"
        prompts = len({group for group, _ in share})
        read = prompts * work.prompt_tokens * costs.decoding.prompt
        cached = sum(work.prompt_tokens * length + length * length / 2 for length in lengths)
        steps = costs.decoding.step * max(lengths) + costs.decoding.sequence * sum(lengths)
        slowest = max(slowest, costs.decoding.begin + read + steps + costs.decoding.cached * cached)
    return slowest + work.scoring_seconds + costs.update(work, groups) + costs.sync


def shares(groups: list[Lengths], samplers: int) -> list[list[tuple[int, int]]]:
    """The sequences of each sampler, as (group, length): equal shares, and groups together where that is equal."""
    every = [(group, length) for group, lengths in enumerate(groups) for length in lengths]
    size = math.ceil(len(every) / samplers)
    return [every[begin : begin + size] for begin in range(0, samplers * size, size)]
