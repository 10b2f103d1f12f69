"""Equivalent notations of the right answer, for families whose scorer compares text."""

import re
from collections.abc import Mapping
from typing import Any

from posttrain.rewards.verifiers.characters import plain_characters, words
from posttrain.rewards.verifiers.number_grammar import parse_number, unwrapped

NUMBERS = words(
    """
    aiw basic_arithmetic binary_alternation calendar_arithmetic chain_sum count_bits count_primes gcd lcm
    decimal_chain_sum gsm_symbolic largest_island leg_counting letter_counting maze products number_sequence
    rectangle_count rotten_oranges self_reference simple_equations simple_geometry
    """
)
"""Families whose answer is one number, or may be."""
WORDS = frozenset(
    (
        *("acre", "calendar_arithmetic", "color_cube_rotation", "course_schedule", "family_relationships"),
        *("game_of_life_halting", "isomorphic_strings", "mahjong_puzzle", "needle_haystack", "ransom_note"),
        *("syllogism", "zebra_puzzles"),
    )
)
"""Families whose answer is a word or a name, or may be, for which case says nothing."""

_QUOTIENT = re.compile(r"[0-9]\s*[/\u2044\u00f7]\s*[0-9]|frac")  # 2 / 1 may be two answers, and 12/2 is not worked out


def as_the_task_writes_it(family: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The task's own text, if the answer is the same number or word in another notation; else the answer.

    Example:
        >>> entry = {"question": "Count the legs of 73 cows.", "answer": "292"}
        >>> [as_the_task_writes_it("leg_counting", text, entry) for text in ("**292** legs", "292 or 293")]
        ['292', '292 or 293']
    """
    right = str(entry.get("answer"))
    if family in WORDS and ".." not in answer:
        plain = plain_characters(answer)
        if plain is not None and unwrapped(plain).casefold() == right.casefold():
            return right
    if family in NUMBERS:
        given, gold = parse_number(answer, str(entry.get("question"))), parse_number(right)
        quotient = _QUOTIENT.search(answer.rpartition("=")[2])
        if given is not None and given == gold:
            return answer if quotient and given.value.denominator == 1 else right
    return answer
