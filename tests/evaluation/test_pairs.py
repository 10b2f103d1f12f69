"""How scores are judged against what people chose, by hand and with planted truth."""

import itertools
import math
import random
from statistics import fmean, pstdev

import pytest

from posttrain.errors import UserError
from posttrain.evaluation.pairs import (
    ScoredPair,
    accuracy,
    by_category,
    by_length,
    calibration,
    calibration_error,
    crossfitted_error,
    disagreement_tells,
    fit_temperature,
    length_correlation,
    log_loss,
    measures,
)

NUMBERS = itertools.count()


def pair(margin: float, tokens: tuple[int, int] = (1, 1), category: str = "", prompt: int | None = None) -> ScoredPair:
    return ScoredPair((margin + 3.0,), (3.0,), *tokens, category, next(NUMBERS) if prompt is None else prompt)


def test_equal_scores_are_half_right():
    found = accuracy([pair(2.0), pair(0.0), pair(-1.0), pair(1.0)])
    assert (found.value, found.pairs) == (2.5 / 4, 4)
    assert found.ci95[0] < found.value < found.ci95[1]
    with pytest.raises(UserError, match="no pairs"):
        accuracy([])


def test_a_prompt_with_many_pairs_is_one_observation():
    pairs = [*(pair(1.0, prompt=1) for _ in range(6)), pair(-1.0, prompt=2), pair(1.0, prompt=3)]
    found = accuracy(pairs)
    assert (found.value, found.pairs) == (pytest.approx(2 / 3), 8)
    assert found.ci95 == accuracy([pair(1.0), pair(-1.0), pair(1.0)]).ci95


def test_categories_are_judged_apart_where_there_are_several():
    pairs = [pair(1.0, category="chat"), pair(-1.0, category="safety"), pair(2.0, category="chat")]
    found = by_category(pairs)
    assert {name: (one.value, one.pairs) for name, one in found.items()} == {"chat": (1.0, 2), "safety": (0.0, 1)}
    assert list(found) == ["chat", "safety"] and by_category(pairs[::2]) == {}


def test_the_score_of_an_ensemble_is_its_mean_and_its_disagreement_that_of_the_margins():
    one = ScoredPair((1.0, 4.0), (2.0, 0.0))
    assert one.margin == 1.5 and one.right == 1.0
    assert one.disagreement == pstdev([-1.0, 4.0])


def test_log_loss_by_hand():
    sure = [1 / (1 + math.exp(-m / 2)) for m in (1.0, -3.0)]
    assert log_loss([pair(1.0), pair(-3.0)], 2.0) == pytest.approx(-fmean(map(math.log, sure)))
    assert log_loss([pair(-800.0)]) == pytest.approx(800.0) and log_loss([pair(800.0)]) == pytest.approx(0.0)


def test_bins_of_calibration_by_hand():
    margins = [0.0, 0.1, -0.1, 1.2, -1.2, 1.2, 900.0]
    found = calibration([pair(m) for m in margins])
    sure = [1 / (1 + math.exp(-m)) for m in (0.1, 1.2)]
    assert [one.pairs for one in found] == [3, 3, 1]
    assert [one.right for one in found] == pytest.approx([0.5, 2 / 3, 1.0])
    assert [one.confidence for one in found] == pytest.approx([(0.5 + 2 * sure[0]) / 3, sure[1], 1.0])
    expected = (abs(0.5 - found[0].confidence) * 3 + abs(2 / 3 - sure[1]) * 3) / 7
    assert calibration_error([pair(m) for m in margins]) == pytest.approx(expected)
    assert [one.pairs for one in calibration([pair(0.16), pair(0.24)])] == [1, 1]  # 0.54 and 0.56: bins of 0.05
    cooler = calibration_error([pair(m) for m in margins], 2.0)
    assert cooler == pytest.approx(calibration_error([pair(m / 2) for m in margins]))


def planted(temperature: float, count: int = 4000, seed: int = 0) -> list[ScoredPair]:
    """Pairs whose scores are `temperature` times as sure as people agree."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        true = draw.gauss(0, 1.5)
        sign = 1 if draw.random() < 1 / (1 + math.exp(-true)) else -1
        found.append(pair(sign * true * temperature))
    return found


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_planted_temperature_is_found_and_mends_the_calibration(temperature):
    pairs = planted(temperature)
    found = fit_temperature(pairs)
    assert found == pytest.approx(temperature, rel=0.08)
    for other in (found * 0.9, found * 1.1):
        assert log_loss(pairs, found) < log_loss(pairs, other)
    assert crossfitted_error(pairs) < 0.03
    if temperature != 1.0:
        assert calibration_error(pairs) > 0.07


def test_few_pairs_that_are_all_judged_rightly_do_not_make_a_model_certain():
    assert fit_temperature([pair(2.0)] * 5) == pytest.approx(2 / math.log(6))
    assert fit_temperature([pair(2.0)] * 500) == pytest.approx(2 / math.log(501))
    assert fit_temperature([pair(-1.0)] * 5) == pytest.approx(20.0)
    assert fit_temperature([pair(0.0)] * 5) > 0


def test_a_calibration_is_judged_on_pairs_that_it_was_not_fitted_to():
    first, second = [pair(2.0) for _ in range(100)], [pair(m) for _ in range(50) for m in (2.0, -2.0)]
    pairs = [*first, *second]  # right in every pair of one half, in half of the other
    sure = 1 / (1 + math.exp(-2 / fit_temperature(first)))
    # the first half is right where it is half sure, the second half right where it is all but certain
    assert crossfitted_error(pairs) == pytest.approx((0.5 + sure - 0.5) / 2, abs=0.03)
    assert calibration_error(pairs, fit_temperature(pairs)) < 0.02
    assert crossfitted_error(pairs[:1]) == calibration_error(pairs[:1])


def test_a_correlation_with_length_does_not_depend_on_which_response_is_called_chosen():
    pairs = [pair(2.0, (10, 5)), pair(1.0, (7, 5)), pair(-1.0, (3, 9))]
    swapped = [ScoredPair(p.rejected, p.chosen, p.rejected_tokens, p.chosen_tokens) for p in pairs]
    margins, longer = [2.0, 1.0, -1.0], [5, 2, -6]
    by_hand = sum(m * d for m, d in zip(margins, longer, strict=True)) / math.sqrt(6.0 * 65)
    assert length_correlation(pairs) == pytest.approx(by_hand)
    assert length_correlation(swapped) == pytest.approx(by_hand)
    assert length_correlation([pair(1.0, (4, 4))]) is None


def test_accuracy_where_the_chosen_response_is_longer_and_shorter():
    pairs = [pair(2.0, (10, 5)), pair(-1.0, (7, 5)), pair(-1.0, (3, 9)), pair(1.0, (4, 4))]
    found = by_length(pairs)
    assert {name: (one.value, one.pairs) for name, one in found.items()} == {"longer": (0.5, 2), "shorter": (0.0, 1)}


def apart(margin: float, spread: float) -> ScoredPair:
    return ScoredPair((margin + spread, margin - spread), (0.0, 0.0))


def test_disagreement_tells_errors_where_members_disagree_over_them():
    right, wrong = [apart(1.0, 0.1), apart(1.0, 0.3)], [apart(-1.0, 0.2), apart(-1.0, 0.5)]
    assert disagreement_tells([*right, *wrong]) == pytest.approx(3 / 4)
    assert disagreement_tells([apart(1.0, 0.2), apart(-1.0, 0.2)]) == 0.5
    assert disagreement_tells([*right, apart(0.0, 9.0), *wrong]) == pytest.approx(3 / 4)  # a tie is neither
    assert disagreement_tells(right) is None and disagreement_tells([pair(1.0), pair(-1.0)]) is None


def test_what_is_logged():
    found = measures([apart(1.0, 0.1), apart(-0.5, 0.3)])
    assert found["accuracy"] == 0.5 and found["margin"] == pytest.approx(0.25)
    assert found["score/chosen"] == pytest.approx(0.25) and found["score/rejected"] == 0.0
    assert found["disagreement_tells"] == 1.0 and "length_correlation" not in found
    assert found["loss"] == pytest.approx(log_loss([apart(1.0, 0.1), apart(-0.5, 0.3)]))
