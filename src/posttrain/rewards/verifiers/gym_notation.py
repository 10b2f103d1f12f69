"""Other ways to write the right answer of a family whose scorer compares texts."""

from collections.abc import Mapping
from typing import Any

from posttrain.rewards.verifiers.characters import plain_characters
from posttrain.rewards.verifiers.number_grammar import parse_number, unwrapped

NUMBERS = frozenset(
    (
        *("aiw", "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes", "gcd", "lcm"),
        *("decimal_chain_sum", "gsm_symbolic", "largest_island", "leg_counting", "letter_counting", "maze", "products"),
        *("number_sequence", "rectangle_count", "rotten_oranges", "self_reference", "simple_equations"),
        "simple_geometry",
    )
)
"""Families whose answer is one number."""
WORDS = frozenset(
    (
        *("acre", "calendar_arithmetic", "color_cube_rotation", "course_schedule", "family_relationships"),
        *("game_of_life_halting", "isomorphic_strings", "mahjong_puzzle", "needle_haystack", "ransom_note"),
        *("syllogism", "zebra_puzzles"),
    )
)
"""Families whose answer is a word or a name, for which case says nothing."""


def as_the_task_writes_it(family: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The task's own text, if the answer is the same number or word in another notation; else the answer as it is.

    Example:
        >>> entry = {"question": "Count the legs of 73 cows.", "answer": "292"}
        >>> [as_the_task_writes_it("leg_counting", text, entry) for text in ("**292** legs", "292 or 293")]
        ['292', '292 or 293']
    """
    right = str(entry.get("answer"))
    if family in NUMBERS:
        given, gold = parse_number(answer, str(entry.get("question"))), parse_number(right)
        same = given is not None and given == gold and not given.percent
    else:
        plain = plain_characters(answer) if family in WORDS else None
        same = plain is not None and unwrapped(plain).casefold() == right.casefold()
    return right if same else answer
