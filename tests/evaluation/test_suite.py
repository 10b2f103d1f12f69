"""The measures of suites, by hand; rows that they make of data."""

from fractions import Fraction
from math import hypot
from statistics import fmean

import pytest

from posttrain.evaluation.suite import Measure, Suite, ratio
from posttrain.evaluation.suites import SUITES
from posttrain.evaluation.suites.ifeval import IFEval
from posttrain.evaluation.suites.processbench import ProcessBenchCritic
from posttrain.statistics import mean_interval, normal_interval, paired_difference_interval, wilson_interval
from posttrain.types import Group, Row, Score, StopReason, Task, Trajectory, Turn

TURN = Turn((1,), (2,), (-1.0,), StopReason.STOP, "text")


def group(id: str, answer: object, *samples: dict[str, Score], **metadata: object) -> Group:
    rows = tuple(
        Row(trajectory=Trajectory((TURN,)), episode=n, scores=scores, reward=1.0) for n, scores in enumerate(samples)
    )
    return Group(task=Task((), answer=answer, metadata=metadata, id=id), rows=rows)


def test_a_ratio_weighs_rates_and_its_values_have_the_ratio_as_mean() -> None:
    found = ratio("instructions", [1.0, 0.5, 0.0], [1, 2, 1])
    assert found.value == pytest.approx(float(Fraction(1 + 1 + 0, 4)))
    assert found.values == pytest.approx((0.5 + 0.75 * 0.5, 0.5, 0.5 - 0.75 * 0.5))
    assert found.ci95 == pytest.approx(normal_interval([0.875, 0.5, 0.125, 0.0, 0.0, 1.0, 1.0]))


def test_a_ratio_of_equal_weights_has_the_interval_of_rates() -> None:
    rates = [1.0, 0.0, 0.5, 0.25]
    assert ratio("prompts", rates, [1] * 4).ci95 == pytest.approx(mean_interval(rates))
    assert ratio("prompts", [0.0] * 9, [1] * 9).ci95 == pytest.approx(mean_interval([0.0] * 9))


def test_a_difference_is_paired_by_task_and_for_rates_that_of_statistics() -> None:
    before, after = [0.0, 0.5, 0.0, 1.0], [1.0, 0.5, 0.25, 1.0]
    value, interval = ratio("m", after, [1] * 4).over(ratio("m", before, [1] * 4))
    assert value == pytest.approx(1.25 / 4)
    expected = paired_difference_interval(before, after)
    assert fmean(interval) == pytest.approx(fmean(expected))  # the centre; the spread of N, not N - 1, is theirs
    assert interval[1] - interval[0] == pytest.approx((expected[1] - expected[0]) * (6 / 5) ** 0.5)


def test_the_four_measures_of_ifeval() -> None:
    def scores(*values: float) -> dict[str, Score]:
        names = ("constraints", "instruction_strict", "prompt_loose", "instruction_loose")
        return {name: Score(value) for name, value in zip(names, values, strict=True)}

    groups = [
        group("ifeval/1", None, scores(0, 1 / 3, 1, 1), instruction_id_list=["a", "b", "c"]),
        group("ifeval/2", None, scores(1, 1, 1, 1), scores(0, 0, 0, 0), instruction_id_list=["a"]),
    ]
    found = {one.name: one.value for one in IFEval().measures(groups, "constraints")}
    assert found == pytest.approx(
        {
            "instruction-level strict": (1 + 0.5) / 4,
            "prompt-level loose": (1 + 0.5) / 2,
            "instruction-level loose": (3 + 0.5) / 4,
        }
    )


def said(id: str, label: int, *answers: int | None) -> Group:
    samples = [
        Score(0.0, unparsed=True) if answer is None else Score(float(answer == label), str(answer))
        for answer in answers
    ]
    return group(f"processbench/{id}", label, *({"numbers": score} for score in samples))


def test_the_f1_of_each_subset_and_their_mean() -> None:
    groups = [
        *(said("math-0", 0, 0), said("gsm8k-0", 2, 2), said("math-1", 1, 2), said("gsm8k-1", -1, -1)),
        *(said("math-2", -1, None), said("gsm8k-2", -1, 0), said("math-3", -1, -1)),
    ]
    mean, maths, gsm8k = ProcessBenchCritic().measures(groups, "numbers")
    assert (maths.name, gsm8k.name, mean.name) == ("F1 math", "F1 gsm8k", "F1")
    assert maths.value == pytest.approx(0.5)  # 1 of 2 and 1 of 2
    assert gsm8k.value == pytest.approx(2 / 3)  # 1 of 1 and 1 of 2: 2 x 0.5 / 1.5
    assert mean.value == pytest.approx((0.5 + 2 / 3) / 2) and len(mean.values) == 7
    (low, high), half = wilson_interval(1, 2), 0.5
    assert maths.ci95 == pytest.approx((low, high))  # both accuracies have the same
    assert mean.ci95[0] == pytest.approx(mean.value - hypot(half - low, gsm8k.value - gsm8k.ci95[0]) / 2)
    assert mean.ci95[1] == pytest.approx(mean.value + hypot(high - half, gsm8k.ci95[1] - gsm8k.value) / 2)


def test_values_say_what_a_task_changes_of_the_f1() -> None:
    labels = [0, 1, 2, -1, -1]
    before = [
        said(f"a-{n}", label, answer) for n, (label, answer) in enumerate(zip(labels, [0, 0, 0, -1, -1], strict=True))
    ]
    after = [
        said(f"a-{n}", label, answer) for n, (label, answer) in enumerate(zip(labels, [0, 1, 0, -1, -1], strict=True))
    ]
    (was,), (now,) = (ProcessBenchCritic().measures(some, "numbers") for some in (before, after))
    assert was.value == pytest.approx(0.5) and now.value == pytest.approx(0.8)  # a is 1/3, then 2/3; b is 1
    assert was.values[0] > was.value > was.values[1] and was.values[3] == pytest.approx(was.value)
    assert now.over(was)[0] == pytest.approx(0.3)


def test_a_critic_of_several_samples_says_what_most_of_them_say() -> None:
    groups = [said("a-0", 1, 1, 0, 1), said("a-1", -1, None, 0, 0)]
    (found,) = ProcessBenchCritic().measures(groups, "numbers")
    assert found.value == 0.0 and found.values[0] == found.value
    (found,) = ProcessBenchCritic().measures([groups[0], said("a-1", -1, None, -1, 0)], "numbers")
    assert found.value == 1.0


def test_a_subset_without_both_kinds_is_left_out_and_all_are_one_where_none_has_both() -> None:
    groups = [said("a-0", 1, 1), said("b-0", -1, -1), said("b-1", 0, 0)]
    assert [one.name for one in ProcessBenchCritic().measures(groups, "numbers")] == ["F1"]
    assert len(ProcessBenchCritic().measures(groups, "numbers")[0].values) == 2
    assert [len(one.values) for one in ProcessBenchCritic().measures(groups[:2], "numbers")] == [2]


def test_every_suite_says_what_it_is_of() -> None:
    for suite in SUITES.values():
        assert suite.hub.count("/") == 1 and suite.options["reward"] and suite.options["max_new_tokens"] > 256
        assert issubclass(suite, Suite) and suite.__doc__


def test_a_measure_is_the_mean_of_its_values() -> None:
    assert Measure("m", (0.0, 1.0), (0.25, 0.75)).value == 0.5


def test_a_difference_of_no_rate_has_no_bounds() -> None:
    was, now = (Measure("bleu_max", (0.0, 100.0), values, rate=False) for values in ((20.0, 30.0), (24.0, 36.0)))
    assert now.over(was) == (5.0, normal_interval([4.0, 6.0]))
    half = Measure("bleu_max", (0.0, 1.0), (0.5, 1.0))  # of a model whose values are all small
    assert now.over(half) == (29.25, normal_interval([23.5, 35.0]))


def test_answers_of_one_kind_alone_have_no_f1() -> None:
    assert ProcessBenchCritic().measures([said("a-0", 1, 1), said("b-0", 0, 1)], "numbers") == []
