"""A slow, literal reading of Dettmers et al. 2021 (arXiv 2110.02861), in plain floats. No code of `posttrain` is used.

The 256 levels are read from the bits of a code as the paper's figure 2 has them: a sign bit, then zeros that count the
decades, an indicator bit of 1, and what is left is a linear fraction. The unsigned type gives the sign bit to the
fraction (section 2.2).
"""

import math

BLOCK = 256


def level(code, signed):
    """The number that one of the 256 bit patterns stands for, as a share of the block's largest."""
    bits = [code >> place & 1 for place in range(7, -1, -1)]
    sign = -1.0 if signed and bits.pop(0) else 1.0
    more = [] if signed else [bits.pop()]  # the freed bit: one more of the fraction
    if 1 not in bits:  # no indicator: 0, and in the pattern that would be another 0 the largest number
        return 1.0 if sign < 0 or more == [1] else 0.0
    zeros = bits.index(1)
    fraction = bits[zeros + 1 :] + more
    part = sum(bit << place for place, bit in enumerate(reversed(fraction)))
    return sign * 10.0**-zeros * (0.1 + 0.9 * (part + 0.5) / 2 ** len(fraction))


def levels(signed):
    return sorted(level(code, signed) for code in range(256))


def read_back(numbers, signed):
    """Equations 4 to 7: quantised by blocks, and read back. What is above 0 without a sign stays so."""
    every, found = levels(signed), []
    above = [one for one in every if one > 0]
    for start in range(0, len(numbers), BLOCK):
        block = numbers[start : start + BLOCK]
        scale = max(abs(x) for x in block)
        if not scale:
            found += [0.0] * len(block)
            continue
        for x in block:
            candidates = every if signed or x <= 0 else above
            found.append(scale * min(candidates, key=lambda one: abs(one - x / scale)))
    return found


def adamw(weights, grads_of_steps, lr, beta1, beta2, eps, decay):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2) that keeps its moments as `read_back` gives them."""
    m, v = [0.0] * len(weights), [0.0] * len(weights)
    for step, grads in enumerate(grads_of_steps, 1):
        m = [beta1 * old + (1 - beta1) * g for old, g in zip(m, grads, strict=True)]
        v = [beta2 * old + (1 - beta2) * g * g for old, g in zip(v, grads, strict=True)]
        updates = [
            (a / (1 - beta1**step)) / (math.sqrt(b / (1 - beta2**step)) + eps) for a, b in zip(m, v, strict=True)
        ]
        weights = [w - lr * decay * w - lr * u for w, u in zip(weights, updates, strict=True)]
        m, v = read_back(m, signed=True), read_back(v, signed=False)
    return weights, m, v
