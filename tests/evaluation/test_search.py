"""Beam search by hand: a tree of steps whose scores are known, sampled by a scripted engine."""

import math
from collections import Counter

import pytest

from posttrain.background import finish
from posttrain.data import ChatFormat
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players
from posttrain.evaluation.search import beam_search
from posttrain.rewards import StepReward, Weighted
from posttrain.types import Message, Sampling, Task
from tests.data.families import of_family

CHAT = ChatFormat(of_family("smollm2"))
TASK = Task((Message("user", "?"),), "7", id="t")
# What follows each text: a list of steps that are sampled in turn. A step without a line's end is the last one.
TREE = {
    "": ["a\n", "b\n", "c\n", "d\n"],
    "a\n": ["a1", "a2"],
    "b\n": ["b1\n", "b2"],
    "c\n": ["c1\n", "c2\n"],
    "d\n": ["d1", "d2"],
    "c\nc1\n": ["x", "z"],
    "c\nc2\n": ["y"],
}
RIGHT = {
    **{"a": 0.2, "b": 0.9, "c": 0.8, "d": 0.1, "b1": 0.3, "b2": 0.7, "c1": 0.6, "c2": 0.5, "x": 0.95, "y": 0.4},
    **{"e": 0.5, "z": 0.35, "a1": 0.85, "a2": 0.05, "d1": 0.75, "d2": 0.15},
}


def said(token_ids):
    return CHAT.decode(token_ids).rpartition("assistant\n")[2]


class Tree:
    """The engine of a tree, with what it was asked."""

    def __init__(self, tree=TREE):
        self.tree, self.drawn, self.asked = tree, Counter(), []
        self.engine = ScriptedEngine(self.script, CHAT.stop_ids, decode=CHAT.decode)

    def script(self, request):
        text = said(request.token_ids)
        greedy = request.sampling.temperature == 0
        self.asked.append((text, greedy))
        step = self.tree[text][0 if greedy else self.drawn[text]]
        self.drawn[text] += not greedy
        # behind a line's end there is more, which the stop string cuts
        more = CHAT.tokenizer.encode("more") if step.endswith("\n") else [max(CHAT.stop_ids)]
        return [*CHAT.tokenizer.encode(step), *more]


def judge(conversations):
    rights = [[RIGHT[line] for line in messages[-1].content.splitlines()] for messages in conversations]
    return [[math.log(p / (1 - p)) for p in of_steps] for of_steps in rights]


def searched(tree, tasks=(TASK,), max_new_tokens=16, **words):
    players = Players(tree.engine, CHAT, Sampling(max_new_tokens), max_tokens=256)
    reward = StepReward([judge], "last")

    def score(episodes):
        return [score.total for score in finish(reward.score_episodes(episodes))]

    return beam_search(ScoredEnvironment(Weighted(((reward, 1.0),))), tasks, players, score, **words)


def texts(found):
    return [played.episode.completion for played in found.answers]


def size(*steps):
    return sum(len(CHAT.tokenizer.encode(step)) for step in steps)


def test_the_best_paths_by_hand():
    """Of 4 first steps the best 2 go on, twice each; then one answer is there, and the best 2 share the other 3."""
    tree = Tree()
    (found,) = searched(tree, beams=4, expansions=2)
    sampled = [text for text, _ in tree.asked]
    assert sampled == [""] * 4 + ["b\n", "c\n"] * 2 + ["c\nc1\n", "c\nc2\n", "c\nc1\n"]
    assert texts(found) == ["b\nb2", "c\nc1\nx", "c\nc2\ny", "c\nc1\nz"]
    assert found.scores == pytest.approx([0.7, 0.95, 0.4, 0.35])
    ends = 4  # stop tokens
    assert found.tokens == size("a\n", "b\n", "c\n", "d\n", "b1\n", "b2", "c1\n", "c2\n", "x", "y", "z") + ends
    prompt = len(CHAT.prompt_ids(TASK.prompt))
    first = size("a\n", "b\n", "c\n", "d\n")
    second = size("b\n", "b1\n", "b\n", "b2", "c\n", "c1\n", "c\n", "c2\n") + 1
    third = size("c\n", "c1\n", "x", "c\n", "c2\n", "y", "c\n", "c1\n", "z") + 3
    assert found.read == 4 * prompt + first + 4 * prompt + second + 3 * prompt + third


def test_with_a_lookahead_a_step_is_worth_what_follows_it():
    """Behind a and d stand a1 and d1, the likeliest, of 0.85 and 0.75; behind b and c 0.3 and 0.6."""
    tree = Tree()
    (found,) = searched(tree, beams=4, expansions=2, lookahead=1)
    assert tree.asked[:8] == [("", False)] * 4 + [(text, True) for text in ("a\n", "b\n", "c\n", "d\n")]
    assert texts(found) == ["a\na1", "d\nd1", "d\nd2", "a\na2"]
    assert found.scores == pytest.approx([0.85, 0.75, 0.15, 0.05])
    ahead = size("a1", "b1\n", "c1\n", "d1") + 2  # decoded greedily; those that have ended have nothing ahead
    first = size("a\n", "b\n", "c\n", "d\n")
    assert found.tokens == first + size("a1", "a2", "d1", "d2") + 4 + ahead
    second = size("a\n", "a1", "a\n", "a2", "d\n", "d1", "d\n", "d2") + 4
    assert found.read == 8 * len(CHAT.prompt_ids(TASK.prompt)) + first + ahead + second


def test_an_answer_ends_with_its_length():
    tree = Tree({"": ["a\n", "b\n"], "a\n": ["a1"], "b\n": ["b2"]})
    (found,) = searched(tree, beams=2, expansions=2, max_new_tokens=size("a\n"))
    assert texts(found) == ["b\n", "a\n"] and found.scores == pytest.approx([0.9, 0.2])


def test_tasks_are_searched_together_and_apart():
    tree = Tree(TREE | {"b\nb1\n": ["e"]})
    first, second = searched(
        tree, [TASK, TASK], beams=2, expansions=2
    )  # a and b are of the first, c and d of the second
    assert texts(first) == ["b\nb2", "b\nb1\ne"] and texts(second) == ["c\nc1\nx", "c\nc1\nz"]
    assert first.tokens == size("a\n", "b\n", "b1\n", "b2", "e") + 2
