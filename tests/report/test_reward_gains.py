"""Completions whose reward rose most between the first and the last evaluation."""

import pytest

from posttrain.report import write_report
from posttrain.report.run_report import risen
from posttrain.runs import Sample
from posttrain.runs.run_directory import RunDirectory
from tests.report.test_run_report import HOSTILE, body


def rows(step, *rewards, prompts="abcdefghijklmnop"):
    return [
        {"step": step, "prompt": prompt, "completion": f"{prompt}{step}", "reward": reward}
        for prompt, reward in zip(prompts, rewards, strict=False)
    ]


def test_the_most_comes_first_and_what_fell_or_stayed_is_left_out():
    found = risen([*rows(0, 1.0, 0.0, 2.0, 5.0), *rows(5, 9.0, 9.0, 9.0, 9.0), *rows(9, 1.5, 3.0, 2.0, 4.0)])
    assert [(one.before["completion"], one.after["completion"], one.by) for one in found] == [
        ("b0", "b9", 3.0),
        ("a0", "a9", 0.5),
    ]


def test_no_more_than_are_asked_for():
    found = [*rows(0, *[0.0] * 12), *rows(1, *map(float, range(12)))]
    assert [one.by for one in risen(found)] == [float(n) for n in range(11, 1, -1)]
    assert [one.by for one in risen(found, most=2)] == [11.0, 10.0]


@pytest.mark.parametrize(
    "found",
    [
        [],
        rows(3, 1.0, 2.0),  # one evaluation alone
        [*rows(0, 0.0), *rows(1, 1.0, prompts="b")],  # another prompt
        [*rows(0, None), *rows(1, 1.0)],  # no reward
        [*rows(0, 1.0), *rows(1, None)],
    ],
)
def test_what_cannot_be_compared_is_not(found):
    assert risen(found) == []


def test_a_report_shows_them_as_text_before_and_after(tmp_path):
    with RunDirectory.create(tmp_path / "run", "rl", {"seed": 1}) as run:
        for step, reward in ((0, 0.25), (4, 0.75)):
            run.log_metrics(step, {"reward/mean": 0.5})
            run.log_heldout(step, [Sample(f"asked {text}", f"said at {step} {text}", {}, reward) for text in HOSTILE])
        page = body(write_report(run.read()))
    section = page.partition("Largest reward gains")[2].partition("</section>")[0]
    assert "from step 0 to step 4" in section and "0.25 to 0.75" in section
    assert section.count("<details") == 2 * len(HOSTILE) and section.index("said at 0") < section.index("said at 4")
    assert "<script>" not in page and "<img" not in page


def test_what_comes_after_the_checkpoint_is_written_again(tmp_path):
    with RunDirectory.create(tmp_path / "run", "rl", {"seed": 1}) as run:
        for step in (0, 2, 4):
            run.log_metrics(step, {"loss": 1.0})
            run.log_heldout(step, [Sample("a", f"at {step}", {}, 1.0)])
        run.rewind(2)
        run.log_heldout(4, [Sample("a", "again", {}, 1.0)])
        assert [row["completion"] for row in run.read().heldout] == ["at 0", "at 2", "again"]


def test_without_evaluations_there_is_no_such_section(tmp_path):
    with RunDirectory.create(tmp_path / "run", "rl", {"seed": 1}) as run:
        run.log_metrics(1, {"reward/mean": 0.5})
        assert "Largest reward gains" not in body(write_report(run.read()))
        assert run.read().heldout == []
