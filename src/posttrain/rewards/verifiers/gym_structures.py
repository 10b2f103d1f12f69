"""Answers of reasoning-gym's families that are JSON, moves, statements or assignments, read whole.

Their scorers read JSON as Python does, which keeps the last of two values of one key and takes true for 1; and they
pass over rows, words, statements and moves that they did not ask for.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

_STATEMENT = re.compile(r"([A-Z]\w*) is an? (\w+)", re.ASCII)
_STATEMENTS = re.compile(r"(?:[A-Z]\w* is an? \w+(?:, and |, | and |\.?\s*$))+", re.ASCII)
_MAPPING = re.compile(r"[A-Z]\s*=\s*\d(?:\s*,\s*[A-Z]\s*=\s*\d)*", re.ASCII)
_SLIDE = re.compile(r"([A-Z])([+-])([1-9])")


def same_json(text: str, right: Any) -> bool:
    """Whether `text` is this value in JSON, in which no key is given twice; 1.0 is 1, true is not."""
    try:
        return _same(json.loads(text, object_pairs_hook=_object), right)
    except ValueError:
        return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _same(said: Any, right: Any) -> bool:
    if isinstance(said, dict) and isinstance(right, dict):
        one, other = cast("dict[str, Any]", said), cast("dict[str, Any]", right)
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in other)
    if isinstance(said, list) and isinstance(right, list):
        ones, others = cast("list[Any]", said), cast("list[Any]", right)
        return len(ones) == len(others) and all(map(_same, ones, others))
    return said == right and isinstance(said, bool) == isinstance(right, bool)


def game_of_life(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer looks at the cells of the right grid alone: there may be more rows and columns."""
    return same_json(text, json.loads(entry["answer"]))


def codeio(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes `"5"` for `5`, and `{}` for `[]`. Not all of its answers are JSON."""
    right = str(entry["answer"]).strip()
    try:
        return text == right or same_json(text, json.loads(right))
    except ValueError:
        return False


def group_anagrams(text: str, entry: Mapping[str, Any]) -> bool:
    """Groups in any order, of words in any order; its scorer takes an object for the list of its keys."""
    said, right = _lists(text), entry["metadata"]["solution"]
    return said is not None and sorted(map(sorted, said)) == sorted(map(sorted, right))


def palindrome_partitioning(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer passes over a partition that is given twice, and takes "aa" for ["a", "a"]."""
    said = _lists(text)
    return said is not None and sorted(said) == sorted(entry["metadata"]["solution"])


def _lists(text: str) -> list[list[str]] | None:
    """A list of lists of strings; None if `text` is anything else."""
    value = json.loads(text)
    return value if _is_list_of(value, lambda group: _is_list_of(group, lambda word: isinstance(word, str))) else None


def _is_list_of(value: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, cast("list[object]", value)))


def graph_color(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes the last of several colors of a vertex, and true for the color 1."""
    pairs: list[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    vertices = sorted(str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"])
    return sorted(key for key, _ in pairs) == vertices and all(type(color) is int for _, color in pairs)


def cryptarithm(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes the last of several digits of a letter."""
    letters = re.findall(r"[A-Z]", text)
    return _MAPPING.fullmatch(text) is not None and len(letters) == len(set(letters))


def knights_knaves(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer passes over statements with a word that is no role, such as "Zoey is a spy"."""
    said, right = (sorted(_STATEMENT.findall(written)) for written in (text, str(entry["answer"])))
    return _STATEMENTS.fullmatch(text) is not None and said == right


def rush_hour(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer moves a car as far as it can go and passes over the rest of the move."""
    import reasoning_gym.games.rush_hour as game  # pyright: ignore[reportMissingTypeStubs]

    if re.fullmatch(rf"(?:{_SLIDE.pattern}[\s,]*)+", text, re.ASCII) is None:
        return False
    board: Any = game.Board(entry["metadata"]["board_config"])
    for car, sign, steps in _SLIDE.findall(text):
        for _ in range(int(steps)):
            before = str(board)
            board.move(car, int(f"{sign}1"))
            if str(board) == before:
                return False
    return True


def sokoban(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer passes over steps into a wall, so that one list of 200 steps solved 9 of 150 puzzles."""
    from reasoning_gym.games.contrib.sokoban.src.game import Game  # pyright: ignore[reportMissingTypeStubs]

    rows = [list(line) for line in entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")]
    game: Any = Game(height=len(rows), width=len(rows[0]))
    game.load_puzzle_matrix(rows)
    return all(game.player.update(key=step) for step in "".join(text.split()))
