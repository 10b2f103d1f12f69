"""Right answers in other notations are paid; what a family's scorer passes over or takes for something else is not."""

from typing import Any

import pytest

from posttrain.rewards import GymVerifier
from posttrain.rewards.verifiers.gym_forms import misread, same_json
from tests.rewards.episodes import score

LIFE = {"answer": "[[0,1],[1,0]]"}
GROUPS = {"answer": "", "metadata": {"solution": [["eat", "tea"], ["tan", "nat"]]}}
PARTS = {"answer": "", "metadata": {"solution": [["a", "a"], ["aa"]]}}
OUTPUT = {"answer": '{"n": 5, "list": []}'}
COLORS = {"vertices": [0, 1], "edges": [(0, 1)], "color_options": [1, 2]}
COLORING = {"answer": None, "metadata": {"puzzle": COLORS}}
SUM = {"answer": "A=1,B=2", "metadata": {"words_letters": ["A", "A"], "result_letters": "B"}}
KNIGHTS = {"answer": "Zoey is a knight, and Jim is a knave."}
JUGS = {"answer": '["fill A", "pour A->B"]', "metadata": {"puzzle": {"jug_capacities": [3, 5, 2], "target": 3}}}
# The car A leaves to the right, where B stands in its way and can go down by 2.
CARS = {"answer": None, "metadata": {"board_config": "oooooo" * 2 + "AAoBoo" + "oooBoo" + "oooooo" * 2}}
# The player * has the box @ on its right, which belongs on X.
BOX = {"answer": "RR", "metadata": {"gamestr": "+ + + + + + +\n+ - * @ - X +\n+ + + + + + +"}}
SQUARES = {"answer": "", "metadata": {"row_sums": [1, 2], "col_sums": [1, 2], "n_rows": 2, "n_cols": 2}}
BOARD = {"answer": "1 2\n3 4", "metadata": {"output": ((1, 2), (3, 4))}}
ROUTE = {"answer": "right", "metadata": {"matrix": [["*", "#"], ["O", "O"]]}}


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong"),
    [
        (
            "game_of_life",
            LIFE,
            ["[[0, 1], [1, 0]]", "[[0,1],\n [1,0]]"],
            [
                *("[[0,1],[1,0],[7]]", "[[0,1,1],[1,0,1]]", "[[0,1],[1,0,null]]", "[[false,true],[true,false]]"),
                *("[[0,1],[1,0],{}]", '[[0,1],[1,0],"not"]', "[[0,1],[1,0]] x"),
            ],
        ),
        (
            "group_anagrams",
            GROUPS,
            ['[["nat","tan"],["tea","eat"]]'],
            ['[{"eat": 1, "tea": 2}, ["tan", "nat"]]', '[["eat","tea"],["tan","nat"],[]]'],
        ),
        (
            "palindrome_partitioning",
            PARTS,
            ['[["aa"], ["a", "a"]]'],
            ['["aa", ["aa"]]', '[["a","a"],["aa"],["aa"]]', '[["aa"], {"a": 1, "b": 2}]', '{"aa": 1}'],
        ),
        (
            "codeio",
            OUTPUT,
            ['{"n": 5, "list": []}', '{"list": [], "n": 5.0}'],
            [
                *('{"n": 4, "n": 5, "list": []}', '{"n": "5", "list": []}', '{"n": 5, "list": {}}'),
                *('{"n": 5, "list": [], "m": 1}', '{"n": 5}', '{"n": true, "list": []}', '{"n": 5, "list": [1]}'),
            ],
        ),
        ("codeio", {"answer": '{"ok": true}'}, ['{"ok":true}'], ['{"ok": 1}', '{"ok": "True"}']),
        ("codeio", {"answer": "x {y}"}, ["x {y}"], ['{"y": 1}']),
        (
            "graph_color",
            COLORING,
            ['{"0": 1, "1": 2}', '{"1": 1, "0": 2}'],
            ['{"0": true, "1": 2}', '{"0": 1.0, "1": 2.0}', '{"0": 2, "0": 1, "1": 2}', '{"0": 1, "1": 2, "2": 1}'],
        ),
        (
            "cryptarithm",
            SUM,
            ["A=1,B=2", "B = 2, A = 1"],
            ["A=3,A=1,B=2", "A=1,B=2,A=1", "A=+1,B=+2", "A=0_1,B=2", "A=٠,A=١,B=٢", "A=٢,B=٤", "A=01,B=02"],
        ),
        (
            "knights_knaves",
            KNIGHTS,
            ["Zoey is a knight, and Jim is a knave.", "Jim is a knave and Zoey is a knight"],
            [
                *(
                    "Zoey is a knight, and Jim is a knave, and Zoey is a spy.",
                    "Zoey is a knight, Jim is a knave, That is a lie",
                ),
                *(
                    "Zoey is a knight, and Jim is a knave, or so",
                    "This is a guess, and Zoey is a knight, and Jim is a knave.",
                    "Zoey is a knight, Zoey is a knight, Jim is a knave",
                ),
            ],
        ),
        (
            "jugs",
            JUGS,
            ['["fill A"]', '[ "fill A",\n"pour A->B" ]'],
            ['["fill A or not"]', '["fill A", "fill C maybe"]', '{"fill A": 1}', "[]"],
        ),
        (
            "rush_hour",
            CARS,
            ["B+2 A+4", "B+1 A+1 B+1 A+3"],
            ["A+4 B+2 A+4", "B+5 A+4", "B+2 A+4 A+1", "B+2 A+9", "B+2 A+4 or A-1", "B+2 and A+4", "B+0"],
        ),
        ("sokoban", BOX, ["RR", "R R", "LRRR"], ["RRU", "LLRRR", "RR or L", "RR x", "R", "UDRR"]),
        ("kakurasu", SQUARES, ["1 0\n0 1", "10\n01"], ["1 0 7\n0 1 7", "21 0\n0 1"]),
        ("rearc", BOARD, ["1 2\n3 4", "1 2 \n3 4"], ["1 2\n3 4\nShape: 5 6", "Shape: not 1 2\n1 2\n3 4"]),
        ("shortest_path", ROUTE, ["right", " right "], ["right up", "Right or left"]),
    ],
)
def test_answers_are_read_whole(name: str, row: dict[str, Any], right: list[str], wrong: list[str]):
    entry = {"question": "", "metadata": {}, **row}

    def paid(text: str) -> bool:
        return score(GymVerifier(), f"<answer>{text}</answer>", dataset=name, entry=entry).value == 1.0

    assert {text: paid(text) for text in [*right, *wrong]} == {
        **dict.fromkeys(right, True),
        **dict.fromkeys(wrong, False),
    }


def test_a_check_alone_knows_what_is_right():
    """Without a scorer before it, which refuses some of these too."""
    assert same_json('{"n": 5}', '{"n": 5.0}')
    assert not same_json('{"n": 5, "m": 1}', '{"n": 5}') and not same_json('{"m": 5}', '{"n": 5}')
    assert not same_json("[1]", '{"n": 5}') and not same_json("[1", "[1]") and not same_json("[1, 2]", "[1]")
    assert misread("group_anagrams", '[["tan", "nat"], ["tea", "eat"]]', GROUPS) is None
    assert misread("group_anagrams", '[["tea", "eat"]]', GROUPS)
    assert misread("group_anagrams", '[["tan", "tea"], ["nat", "eat"]]', GROUPS)
    assert misread("palindrome_partitioning", '[["aa"], ["a", "a"]]', PARTS) is None
    assert misread("palindrome_partitioning", '[["aa"]]', PARTS)
