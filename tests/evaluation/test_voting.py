"""Choosing among samples: votes, weights, scores, by hand; and when a majority is settled."""

import gzip
import json
import os
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest

from posttrain.evaluation.voting import (
    WAYS,
    Answered,
    accuracy_of,
    by_bins,
    by_difficulty,
    certainty,
    until_settled,
    winner,
)

# QwenLM/Qwen2.5-Math: evaluation/data/eval_rm_maj_example/math_cot_100.jsonl, gzipped
SCORED = Path(os.environ.get("POSTTRAIN_QWEN_SCORED", ""))


def answered(text):
    return Answered([*text], [letter == "a" for letter in text])


@pytest.mark.parametrize(
    ("answers", "weights", "place"),
    [
        (("7", "8", "8"), None, 1),
        (("7", "8"), None, 0),  # a tie
        (("8", "7", "7", "8"), None, 0),
        ((None, "7"), None, 1),
        ((None, None), None, 0),
        (("7", "8", "8"), (0.9, 0.1, 0.3), 0),
        (("7", "8", "8"), (-0.5, -3.0, -1.0), 0),
        ((None, "7"), (9.0, -1.0), 1),
    ],
)
def test_who_wins(answers, weights, place):
    assert winner(answers, weights) == place


def test_of_some_samples_every_set_counts_alike():
    right = (True, False, False, True, False)
    problem = Answered(("7", "8", "9", "7", "8"), right, scores=(0.1, 0.9, 0.2, 0.5, 0.5))  # a tie goes to the first
    for way in WAYS:
        sets = [WAYS[way](problem, places) for places in combinations(range(5), 3)]
        exact = way in ("best", "oracle")
        assert accuracy_of(way, problem, 3, draws=4000) == pytest.approx(fmean(sets), abs=1e-9 if exact else 0.03)
    assert accuracy_of("oracle", problem, 1, draws=4000) == pytest.approx(0.4, abs=0.03)
    with pytest.raises(ValueError, match="of 1 to 5 of them; got n=6"):
        accuracy_of("majority", problem, 6)


def test_certainty_by_the_integral_in_plain_floats():
    for first, second in [(1, 0), (4, 0), (5, 1), (6, 1), (8, 2), (9, 2), (3, 3)]:
        cells = 20_000
        density = [((x + 0.5) / cells) ** first * (1 - (x + 0.5) / cells) ** second for x in range(cells)]
        above = sum(density[cells // 2 :]) / sum(density)
        assert certainty(["a"] * first + ["b"] * second) == pytest.approx(above, abs=1e-6)
    assert certainty([None, None]) == certainty([]) == 0.0
    assert certainty([None, *"aaab", "c"]) == certainty([*"aaab"])


def test_sampling_ends_when_the_majority_is_settled():
    assert until_settled(answered("aaaaaaaa")) == 4
    assert until_settled(answered("abababab")) == 8
    assert until_settled(answered("baaaaaaa")) == 7  # 6 to 1: 0.965; 5 to 1: 0.891
    assert until_settled(answered("aaaaaaaa"), 0.99) == 6


def test_a_budget_goes_where_samples_disagree():
    agree, differ = answered("aaaaaaaa"), answered("abcdabcd")
    assert by_difficulty([agree, differ], 5, first=2) == [2, 8]
    assert by_difficulty([agree, agree], 4, first=4) == [4, 4]
    assert sum(by_difficulty([agree, differ, differ], 6)) == 18
    assert by_difficulty([differ], 99) == [8]  # all that it has
    with pytest.raises(ValueError, match="first=4, mean=3"):
        by_difficulty([agree], 3)


def test_each_bin_has_the_budget_that_is_best_for_the_other_half():
    """Two bins: easy problems are right with 2 samples, hard ones often only with 4."""
    easy, hard = answered("aaaaaa"), answered("bcaaaa")
    problems = [hard, easy] * 4
    assert by_bins("majority", problems, 5, first=2, bins=2) == [4, 2] * 4
    assert by_bins("majority", problems, 2, first=2, bins=2) == [2, 2] * 4  # no more is there
    hopeless = Answered([*"bcdefg"], [False] * 6)
    assert by_bins("majority", [hopeless, easy] * 4, 5, first=2, bins=2) == [2, 2] * 4  # more is of no use
    with pytest.raises(ValueError, match="first=4, mean=3"):
        by_bins("majority", problems, 3)


def test_with_scores_bins_are_of_the_mean_score():
    """Votes of the first two agree in all; scores tell which is hard: there 4 samples are right, 2 are not."""
    sure = Answered([*"aaaa"], [True] * 4, scores=(0.9, 0.9, 0.1, 0.1))
    unsure = Answered([*"bbaa"], [False, False, True, True], scores=(0.1, 0.1, 0.9, 0.9))
    assert by_bins("weighted", [sure, unsure] * 4, 3, first=2, bins=2) == [2, 4] * 4


@pytest.mark.skipif(not SCORED.is_file(), reason="POSTTRAIN_QWEN_SCORED names no file of scored samples")
def test_published_samples():
    rows = [json.loads(line) for line in gzip.decompress(SCORED.read_bytes()).splitlines()]
    problems = [Answered(r["pred"], r["score"], scores=[s[0] for s in r["pred_score"]]) for r in rows]
    found = {way: sum(accuracy_of(way, problem, 8) for problem in problems) for way in WAYS}
    assert found == {"majority": 93, "weighted": 94, "best": 94, "oracle": 96}
