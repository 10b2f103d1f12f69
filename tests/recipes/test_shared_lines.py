"""Recipes stay apart: what two of them share has a name, and the loop of rl can be read at a glance."""

import ast

from tests.recipes.shared_lines import RECIPES, TRAINING, lines_of, shared, shares


def test_no_two_recipes_share_a_tenth_of_their_lines():
    found = shares()
    assert len(found) == len(TRAINING) * (len(TRAINING) - 1) / 2
    assert {pair: share for pair, share in found.items() if share >= 0.1} == {}


def test_lines_in_blocks_of_four_or_more_are_counted():
    one = ["a", "b", "c", "d", "x", "e", "f", "g"]
    assert shared(one, ["y", "a", "b", "c", "d", "z", "e", "f", "g"]) == 4
    assert shared(one, one) == 8
    assert shared(one, ["a", "b", "c"]) == 0


def test_comments_and_indentation_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.recipes.shared_lines.RECIPES", tmp_path)
    (tmp_path / "one.py").write_text("if a:  # why\n\n    # alone\n    b = '#'\n")
    assert lines_of("one") == ["if a:", "b = '#'"]


def test_a_step_of_rl_is_under_25_lines():
    text = (RECIPES / "rl.py").read_text(encoding="utf-8")
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)]
    (loop,) = [each for each in loops if "session.steps" in ast.unparse(each.iter)]
    assert loop.end_lineno is not None and loop.end_lineno - loop.lineno < 25
