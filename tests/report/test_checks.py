"""Each story, told by the fewest numbers that tell it, and the same run a little on the healthy side of the bound."""

import math
from collections.abc import Mapping, Sequence

import pytest

from posttrain.report import checks
from posttrain.report.checks import Finding, Severity
from posttrain.report.curves import Curves, Thresholds

LIMITS = Thresholds()
SIGNAL = "solved no_signal little_signal signal_used_up"
TRUNCATED = "length_explosion truncated"
KL = "far_from_reference kl_spike"
PROGRESS = "reward_rises reward_falls reward_flat heldout_loss_falls heldout_loss_flat loss_falls loss_dips loss_flat"


def judged(names: str, rows: Sequence[Mapping[str, object]]) -> Finding | None:
    """What these checks, of which one at most holds, say about rows."""
    run = Curves(rows, LIMITS)
    found = [finding for name in names.split() if (finding := checks.judge(name, run, LIMITS)) is not None]
    assert len(found) < 2
    return found[0] if found else None


def told(names: str, **metrics: Sequence[float] | float) -> Finding | None:
    """What checks say about 20 steps; a metric is one number, or those of the start and the end; `_` is a slash."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return judged(names, [{"step": n} | {name: at(value, n) for name, value in named.items()} for n in range(20)])


def at(value: Sequence[float] | float, n: int) -> float:
    if isinstance(value, Sequence):
        return value[n * len(value) // 20]
    return value


@pytest.mark.parametrize(
    "share, accuracy, severity, words",
    [
        (0.59, 0.0, None, ""),
        (0.61, 0.0, Severity.WARNING, "too hard"),
        (0.89, 0.6, Severity.WARNING, "too easy"),
        (0.91, 0.0, Severity.PROBLEM, "too hard"),
        (0.91, 0.97, Severity.NOTE, "harder problems, or stop"),
    ],
)
def test_zero_advantage(share: float, accuracy: float, severity: Severity | None, words: str) -> None:
    found = told(SIGNAL, groups__zero_advantage=(0.2, share), accuracy=accuracy)
    assert (found and found.severity) == severity
    assert found is None or (words in found.evidence + found.advice and f"{100 * share:.0f}%" in found.evidence)


def test_zero_advantage_without_an_accuracy_gives_both_pieces_of_advice() -> None:
    found = told(SIGNAL, groups__zero_advantage=0.95)
    assert (
        found is not None and "easier" in found.advice and "harder" in found.advice and "accuracy" not in found.evidence
    )


def test_equal_rewards_after_the_reward_rose_are_no_reason_for_doubt() -> None:
    found = told(SIGNAL, groups__zero_advantage=(0.2, 0.7), accuracy=(0.1, 0.5), reward__mean=(0.1, 0.5))
    assert found is not None and found.severity == Severity.NOTE and "70%" in found.evidence


def test_zero_advantage_looks_at_the_end() -> None:
    assert told(SIGNAL, groups__zero_advantage=(0.95, 0.3), accuracy=0.2) is None


@pytest.mark.parametrize(
    "entropy, accuracy, found",
    [
        ((0.5, 0.04), 0.3, True),
        ((0.5, 0.06), 0.3, False),  # low, but not that low
        ((0.1, 0.04), 0.3, False),  # nearly deterministic from the start
        ((0.5, 0.04), 0.96, False),  # what success looks like
    ],
)
def test_entropy_collapse(entropy: tuple[float, float], accuracy: float, found: bool) -> None:
    assert (told("entropy_collapse", entropy=entropy, accuracy=accuracy) is not None) is found


def test_low_entropy_after_the_reward_rose_is_no_reason_for_doubt() -> None:
    found = told("entropy_collapse low_entropy", entropy=(0.5, 0.04), accuracy=(0.1, 0.5), reward__mean=(0.1, 0.5))
    assert found is not None and found.severity == Severity.NOTE


@pytest.mark.parametrize("values, found", [((0.05, 0.31), True), ((0.05, 0.29), False), ((0.25, 0.31), False)])
def test_repetition(values: tuple[float, float], found: bool) -> None:
    assert (told("repetition", repetition=values) is not None) is found


def test_truncated_tells_running_away_from_too_small_a_limit() -> None:
    rising, always = (
        told(TRUNCATED, length__truncated=(0.0, 0.21)),
        told(TRUNCATED, length__truncated=0.21),
    )
    assert rising is not None and rising.severity == Severity.PROBLEM and "explodes" in rising.title
    assert always is not None and always.severity == Severity.WARNING
    assert told(TRUNCATED, length__truncated=(0.0, 0.19)) is None


@pytest.mark.parametrize(
    "length, accuracy, found",
    [
        ((20, 31), (0.3, 0.3), True),
        ((20, 31), (0.3, 0.2), True),
        ((20, 29), (0.3, 0.3), False),
        ((20, 60), (0.3, 0.5), False),  # it pays
    ],
)
def test_longer_for_nothing(length: tuple[float, float], accuracy: tuple[float, float], found: bool) -> None:
    assert (told("length_bias", length__mean=length, accuracy=accuracy) is not None) is found


def test_kl_far_away_or_torn_for_a_moment() -> None:
    far = told(KL, kl=(0.01, 0.51))
    assert far is not None and "The policy is far" in far.title
    torn = told(KL, kl=[0.04] * 10 + [0.6] + [0.04] * 9)
    assert torn is not None and "KL spike" in torn.title and "0.6" in torn.evidence
    assert told(KL, kl=(0.01, 0.49)) is None
    assert told(KL, kl=[0.07] * 10 + [0.6] + [0.07] * 9) is None  # 8.6 times the median
    assert told(KL, kl=[0.01] * 10 + [0.4] + [0.01] * 9) is None


@pytest.mark.parametrize(
    "metrics, words",
    [
        ({"logprob_gap__mean": [0.001] * 19 + [0.031]}, "logprob_gap/mean reached 0.031"),
        ({"logprob_gap__mean": 0.001, "logprob_gap__max": [0.1, 1.1, 0.1, 0.1]}, "logprob_gap/max reached 1.1"),
        ({"logprob_gap__mean": 0.029, "logprob_gap__max": 0.99}, None),
        ({"logprob_gap__mean": [0.001] + [0.06] * 19, "staleness__max": [0.0] + [1.0] * 19}, None),  # learnt since
        ({"logprob_gap__mean": [0.031] + [0.06] * 19, "staleness__max": [0.0] + [1.0] * 19}, "/mean reached 0.031"),
        ({}, None),
    ],
)
def test_logprob_gap_at_any_step(metrics: Mapping[str, Sequence[float]], words: str | None) -> None:
    found = told("logprob_gap", **metrics)
    assert (found is None) == (words is None)
    assert found is None or (words in found.evidence and found.severity == Severity.PROBLEM)


@pytest.mark.parametrize("name, check", [("clip_fraction", "clipped"), ("unparsed", "unparsed")])
def test_shares_that_are_high_at_the_end(name: str, check: str) -> None:
    found = told(check, **{name: (0.0, 0.21)})
    assert found is not None and found.severity == Severity.WARNING and "21%" in found.evidence
    assert found.advice  # a warning says what to try
    assert told(check, **{name: (0.5, 0.19)}) is None


def gaming(
    held_out: Sequence[float], reward: tuple[float, float] = (0.2, 0.6), accuracy: object = None
) -> Finding | None:
    rows = [{"step": n, "reward/mean": at(reward, n)} for n in range(20)]
    for i, value in enumerate(held_out):
        rows[i * 19 // max(1, len(held_out) - 1)]["evaluation/accuracy"] = value
    if accuracy is not None:
        for n, row in enumerate(rows):
            row["accuracy"] = at(accuracy, n)
    return judged("reward_hacking", rows)


def test_gaming_is_reward_without_accuracy() -> None:
    found = gaming([0.30, 0.305])
    assert found is not None and "went from 0.3 to 0.305" in found.evidence
    assert gaming([0.30, 0.20]) is not None
    assert gaming([0.30, 0.31]) is None
    assert gaming([0.30, 0.20], reward=(0.6, 0.2)) is None
    assert gaming([0.30, 0.20], reward=(0.4, 0.4)) is None


def test_gaming_without_held_out_problems_goes_by_the_training_problems() -> None:
    assert gaming([], accuracy=(0.3, 0.3)) is not None
    assert gaming([], accuracy=(0.3, 0.5)) is None
    assert gaming([], accuracy=(0.97, 0.97)) is None
    assert gaming([0.3], accuracy=(0.3, 0.3)) is not None
    assert gaming([0.3], accuracy=(0.3, 0.5)) is None  # one evaluation shows no change
    assert gaming([0.3, 0.4], accuracy=(0.3, 0.3)) is None  # held-out problems have the last word
    assert gaming([]) is None


@pytest.mark.parametrize(
    "metrics, severity, words",
    [
        ({"reward__mean": (0.2, 0.5)}, Severity.GOOD, "rises"),
        ({"reward__mean": (0.5, 0.2)}, Severity.WARNING, "falls"),
        ({"reward__mean": 0.5}, Severity.WARNING, "does not rise"),
        ({"reward__mean": 0.5, "loss": (2.0, 1.0)}, Severity.WARNING, "does not rise"),
        ({"loss": (2.0, 1.0)}, Severity.GOOD, "falls"),
        ({"loss": (1.0, 2.0)}, Severity.WARNING, "does not fall"),
        ({"loss": (1.0, 0.1, 2.0, 2.0)}, Severity.WARNING, "does not fall"),
        ({"loss": (1.0, 0.1, 1.5, 1.0)}, Severity.NOTE, "rose again"),  # ordered data, the harder ones last
        ({"loss": (1.0, 1.5, 0.1, 1.0)}, Severity.NOTE, "rose again"),
    ],
)
def test_improvement(metrics: dict, severity: Severity, words: str) -> None:
    found = told(PROGRESS, **metrics)
    assert found is not None and found.severity == severity and words in found.title


@pytest.mark.parametrize(
    "losses, severity, words",
    [
        ((2.0, 1.0), Severity.GOOD, "held-out loss falls"),
        ((2.0, 2.5), Severity.WARNING, "held-out loss does not fall"),
        ((2.0, 1.9, 2.0), None, ""),  # its lowest was not the first
    ],
)
def test_the_held_out_loss_says_more_than_that_of_ordered_data(
    losses: Sequence[float], severity: Severity | None, words: str
) -> None:
    rows = [{"step": n, "loss": 1.0 + n} for n in range(20)]
    for row, loss in zip(rows, losses, strict=False):
        row["evaluation/loss"] = loss
    found = judged(PROGRESS, rows)
    assert (found and found.severity) == severity
    assert found is None or (words in found.title and "the first was 2," in found.evidence)


def test_improvement_is_not_asked_of_what_is_solved_or_not_measured() -> None:
    assert told(PROGRESS, reward__mean=1.0, accuracy=0.99) is None
    assert told(PROGRESS, kl=0.1) is None


@pytest.mark.parametrize("losses, found", [((2.0, 1.0, 1.06), True), ((2.0, 1.0, 1.04), False), ((2.0,), False)])
def test_overfit(losses: Sequence[float], found: bool) -> None:
    rows = [{"step": n, "evaluation/loss": loss} for n, loss in enumerate(losses)]
    assert (judged("overfitting", rows) is not None) is found


@pytest.mark.parametrize(
    "chosen, margins, found",
    [
        ((-50.0, -55.1), (0.0, 2.0), True),
        ((-50.0, -54.9), (0.0, 2.0), False),
        ((-50.0, -60.0), (2.0, 0.0), False),  # what is lost is no margin's gain
        ((-50.0,), (0.0,), False),
    ],
)
def test_chosen_responses_that_are_pushed_down(chosen: Sequence[float], margins: Sequence[float], found: bool) -> None:
    pairs = zip(chosen, margins, strict=True)
    rows = [{"step": n, "evaluation/logprob/chosen": c, "evaluation/margin": m} for n, (c, m) in enumerate(pairs)]
    assert (judged("displaced", rows) is not None) is found


def test_an_accuracy_of_few_pairs_has_its_interval() -> None:
    rows = [{"step": 8, "evaluation/accuracy": 1.0, "evaluation/pairs": 6}]
    found = judged("few_pairs", rows)
    # Wilson at p = 1: n / (n + z^2) = 6 / (6 + 3.8415)
    assert found is not None and found.evidence == "100% of 6 (95%: 61% to 100%)"
    assert judged("few_pairs", [{**rows[0], "evaluation/pairs": 30}]) is None
    assert judged("few_pairs", [{"step": 8, "evaluation/accuracy": 1.0}]) is None  # of tasks


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_not_finite_names_the_first_step_and_the_metrics(value: float | None) -> None:
    rows = [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": value, "kl": 0.1, "grad_norm": value},
        {"step": 3, "loss": value},
    ]
    found = judged("not_finite", rows)
    assert found is not None and found.evidence == "at step 2: loss, grad_norm"
    assert judged("not_finite", rows[:1]) is None


@pytest.mark.parametrize("name", checks.CHECKS)
def test_what_is_not_measured_is_not_judged(name: str) -> None:
    assert told(name) is None


def test_every_check_has_its_texts_and_every_warning_says_what_to_try() -> None:
    assert list(checks.texts()) == list(checks.CHECKS)
    assert all(text.advice for text in checks.texts().values() if text.severity in (Severity.PROBLEM, Severity.WARNING))


def over_optimised(gold: list[float], proxy: list[float], error: float = 0.01):
    rows = [
        {"step": n, "evaluation/gold": g, "evaluation/reward": p, "evaluation/gold_se": error}
        for n, (g, p) in enumerate(zip(gold, proxy, strict=True))
    ]
    return judged("overoptimisation", rows)


def test_gold_that_turns_down_while_the_reward_rises_is_a_reward_that_is_gamed() -> None:
    found = over_optimised([0.0, 1.0, 0.5], [0.0, 1.0, 2.0])
    assert (
        found is not None and "the gold reward was 1 at its best, evaluation 1 of 2, and is 0.5 now" in found.evidence
    )
    assert "reward went from 1 to 2 since" in found.evidence
    assert over_optimised([0.0, -0.5, -1.0], [0.0, 1.0, 2.0]) is not None  # from the beginning
    assert over_optimised([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]) is None
    assert over_optimised([0.0, 1.0, 0.5], [0.0, 2.0, 1.5]) is None  # both fall: that is another fault


def test_a_fall_within_the_noise_of_gold_or_of_a_share_of_what_was_gained_is_none() -> None:
    assert over_optimised([0.0, 1.0, 0.85], [0.0, 1.0, 2.0]) is None  # 15% of the gain
    assert over_optimised([0.50, 0.51, 0.505], [0.0, 1.0, 2.0]) is None
    assert over_optimised([0.0, 1.0, 0.5], [0.0, 1.0, 2.0], error=0.3) is None
    assert over_optimised([0.0, 0.0], [0.0, 1.0]) is None  # too few


@pytest.mark.parametrize("share, found", [(0.52, True), (0.48, False), ((0.0, 1.0), True), ((0.0, 0.9), False)])
def test_silent(share: Sequence[float] | float, found: bool) -> None:
    said = told("not_applicable", not_applicable__kind=share, not_applicable__tags=0.1, reward__mean=0.5)
    assert (said is not None) == found
    assert said is None or ("'kind'" in said.evidence and said.severity is Severity.WARNING)


def test_silent_counts_the_steps_in_which_a_reward_always_applied() -> None:
    rows = [{"step": n} | ({"not_applicable/kind": 1.0} if n < 9 else {}) for n in range(20)]
    assert judged("not_applicable", rows) is None
    assert judged("not_applicable", rows[:17]) is not None
    assert judged("not_applicable", rows[:7]) is not None  # none of any step
    few = [{"step": n, "not_applicable/kind": 0.9} for n in range(7)]
    assert judged("not_applicable", few) is None
