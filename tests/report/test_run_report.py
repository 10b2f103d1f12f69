import json
import re
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.report import Estimate, Finding, Severity, Table, compare_report, write_report
from posttrain.report.run_report import MAX_CHARACTERS, SAMPLES_PER_STEP
from posttrain.runs import Run, Sample
from posttrain.runs.run_directory import RunDirectory
from tests.report.test_markup import Page

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></tr></table></details></section><h1>hello</h1>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "<img src=https://example.org/x.png>",
    "<!-- <style>*{display:none}</style>",
    "&lt;b&gt; &amp;",
    "]]></svg></figure>",
    "\x00\x07\x1b[2J\x7f\u202e\u2066\ud800",
    "x" * 1_000_000,
]


def make(path: Path, steps: int = 30, config: dict | None = None, text: str = "fine", **metrics: float) -> Run:
    with RunDirectory.create(path, "rl", config or {"lr": 1e-5, "seed": 1}) as run:
        for n in range(1, steps + 1):
            run.log_metrics(n, {"reward/mean": n / steps, "reward/exact": n / 40, "kl": 0.01, "entropy": 0.5} | metrics)
            run.log_samples(n, [Sample(f"prompt {n}", f"{text} {n}.{i}", {"exact": 0.5}, 0.5, "4") for i in range(9)])
        return run.read()


def body(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("</head>")[2]


def test_samples_of_several_models_are_headed_by_their_names(tmp_path: Path) -> None:
    run = make(tmp_path / "run", steps=3)
    run.samples[:] = [row | {"model": name} for row, name in zip(run.samples, ("base", "base", "after"), strict=False)]
    assert re.findall(r"<h3>(base|after|Step.*?)</h3>", body(write_report(run))) == ["base", "after"]


def test_a_report_has_verdict_numbers_curves_samples_and_configuration(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    table = Table(
        "Held-out", ["", "pass@1", "note"], [["base", Estimate(0.025, 0.01, 0.05), None], ["rl", Estimate(0.5), "ok"]]
    )
    path = write_report(run, tables=[table])
    assert path == tmp_path / "run" / "report.html"
    text = Page(body(path)).text
    order = [
        "Held-out",
        "Verdict",
        "The reward rises",
        "Learning",
        "Samples",
        "Configuration",
    ]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert "2.5%" in text and "1.0 to 5.0" in text and "50.0%" in text
    assert "Reward by component" in text and "KL to the reference" in text and "1e-05" in text
    assert "--low:1.00%;--high:5.00%;--at:2.50%" in body(path)


def test_findings_and_the_environment_name_options_as_flags(tmp_path: Path) -> None:
    run = make(tmp_path / "run", steps=2)
    run.environment["precision_reason"] = "`precision`"
    finding = Finding(Severity.NOTE, "About", "drawn with `limit=3`", "Try `stop_after`.")
    text = Page(body(write_report(run, findings=[finding]))).text
    assert "drawn with --limit 3" in text and "Try --stop-after." in text and "--precision" in text
    assert "`" not in text


def test_samples_are_of_the_first_the_middle_and_the_last_step(tmp_path: Path) -> None:
    html = body(write_report(make(tmp_path / "run", steps=31)))
    text = Page(html).text
    assert re.findall(r"Step (\d+)<", html) == ["1", "16", "31"]
    shown = re.findall(r"Completionfine (\d+)\.(\d+)", text)
    assert shown == [(step, str(i)) for step in ("1", "16", "31") for i in range(SAMPLES_PER_STEP)]
    assert "prompt 16" in text and "exact 0.5" in text and "expected: 4" in text


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:16]))
def test_hostile_text_stays_text_wherever_it_comes_from(tmp_path: Path, text: str) -> None:
    clean = make(tmp_path / "clean", steps=2, config={"seed": "x", "k": 1}, **{"mine": 1.0})
    name = text.replace("\ud800", "")[:200]
    hostile = make(tmp_path / "hostile", steps=2, config={"seed": name, name: 1}, text=text, **{name: 1.0})
    hostile.samples[0] |= {
        "prompt": text,
        "answer": text,
        "stop_reason": text,
        "rewards": {text: text},
        "reward": text,
    }
    for run, said in ((clean, "x"), (hostile, text)):
        run.samples[:] = [row | {"model": said} for row in run.samples]
    finding = Finding(Severity.WARNING, text, text, text)
    pages = []
    for run, words in ((clean, "x"), (hostile, text)):
        table = Table(words, ["", words], [[words, words]], words)
        pages.append(write_report(run, tables=[table], findings=[Finding(Severity.WARNING, words, words, words)]))
    assert finding.title == text
    before, after = (Page(path.read_text(encoding="utf-8")) for path in pages)
    assert sorted(after.tags) == sorted(before.tags)
    assert sorted(name for name, _ in after.attributes) == sorted(name for name, _ in before.attributes)
    assert not {"script", "img", "iframe", "link", "form"} & set(after.tags)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", pages[1].read_text(encoding="utf-8"))


def test_huge_completions_do_not_make_a_huge_page(tmp_path: Path) -> None:
    small, huge = (make(tmp_path / str(n), steps=3, text="y" * n) for n in (10, 500_000))
    sizes = [write_report(run).stat().st_size for run in (small, huge)]
    assert sizes[1] - sizes[0] < 12 * 1.2 * MAX_CHARACTERS + 12 * 400
    assert "494,0" in body(huge.path / "report.html") and "more characters" in body(huge.path / "report.html")


def test_a_page_asks_for_nothing_from_anywhere(tmp_path: Path) -> None:
    text = write_report(make(tmp_path / "run")).read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|url\(|<link|<script|src=", text)
    assert (
        "default-src 'none'" in text
        and "script-src" not in text
        and "prefers-color-scheme: dark" in text
        and "width=device-width" in text
    )


def test_a_run_that_has_logged_nothing_still_has_a_report(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "rl", {"seed": 1}) as run:
        text = Page(body(write_report(run.read()))).text
    assert "Configuration" in text and "Verdict" not in text


def test_parts_have_their_own_verdict_curves_and_samples(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "all", "quickstart", {"seed": 1}) as whole:
        parts = [make(tmp_path / "all" / "cold-start", text="cold"), make(tmp_path / "all" / "rl", text="warm", kl=0.9)]
        page = Page(body(write_report(whole.read(), parts=parts)))
    findings = page.text[page.text.index("Verdict") : page.text.index("Learning")]
    assert findings.index("rl: The policy is far from its reference") < findings.index("cold-start: ")
    assert page.text.count("Learning") == 2 and page.text.index("cold 1.0") < page.text.index("warm 1.0")


def test_findings_can_be_given(tmp_path: Path) -> None:
    text = Page(
        body(write_report(make(tmp_path / "run"), findings=[Finding(Severity.NOTE, "Mine", "because", "do")]))
    ).text
    assert "Mine" in text and "The reward rises" not in text


def test_a_table_whose_rows_do_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="table 'T': each row needs 2 cells"):
        write_report(make(tmp_path / "run"), tables=[Table("T", ["", "a"], [["only"]])])


def test_a_comparison_shows_what_differs_and_the_final_numbers(tmp_path: Path) -> None:
    one = make(tmp_path / "one", config={"lr": 1e-5, "same": 3, "deep": {"x": 1}})
    two = make(tmp_path / "two", steps=20, config={"lr": 2e-5, "same": 3, "deep": {"x": 1}, "new": True}, kl=0.9)
    path = compare_report([one, two], tmp_path / "out" / "compare.html")
    html = body(path)
    tables = [re.sub("<[^>]+>", "|", part) for part in re.findall(r'<table class="dense">.*?</table>', html, re.S)]
    different, final = (re.findall(r"[^|\n]+", part) for part in tables)
    assert different == ["one", "two", "lr", "1e-05", "2e-05", "new", "–", "True"]
    # The last five of n/30 are 26 to 30, their mean 28/30; of n/20 they are 16 to 20, 18/20.
    assert final[final.index("reward/mean") :][:3] == ["reward/mean", "0.933", "0.9"]
    assert final[final.index("step") :][:3] == ["step", "30", "20"]
    text = Page(html).text
    assert text.index("two: The policy is far from its reference") < text.index("one: The reward rises")
    assert html.count("<b>0.9</b>") >= 1


def test_a_run_beside_its_control_is_said_to_have_gained_more_or_not(tmp_path: Path) -> None:
    def ends(name: str, *accuracies: float, **config: str) -> Run:
        rows = [{"step": n, "evaluation/accuracy": one} for n, one in enumerate(accuracies)]
        return Run(tmp_path / name, "rl", config, {}, rows, [])

    runs = [
        ends("better", 0.2, 0.1, 0.6),
        ends("as good", 0.2, 0.25),
        ends("control", 0.2, 0.25, reward_control="shuffled"),
        Run(tmp_path / "bare", "rl", {}, {}, [{"step": 1}], []),
    ]
    text = Page(body(compare_report(runs, tmp_path / "compare.html"))).text
    assert "as good: no more than its control" in text and "held-out accuracy: +0.05, in the control +0.05" in text
    assert "better: more than its control" in text and "held-out accuracy: +0.4" in text
    assert "control (control: shuffled labels)" in text and "bare: no" not in text
    assert "its control" not in Page(body(compare_report(runs[:2], tmp_path / "two.html"))).text


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make(tmp_path / where / "rl") for where in ("a", "b")]
    text = Page(body(compare_report(runs, tmp_path / "compare.html"))).text
    assert f"1: {tmp_path / 'a' / 'rl'}" in text and f"2: {tmp_path / 'b' / 'rl'}" in text


def test_a_comparison_needs_two_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two runs or more; got 1; type posttrain report RUN1 RUN2"):
        compare_report([make(tmp_path / "run")], tmp_path / "compare.html")


def test_a_run_whose_start_is_no_time_is_still_shown(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run.path / "environment.json").write_text(json.dumps({"time": "<soon>"}))
    from posttrain.runs import read_run

    assert "<soon>" in Page(body(write_report(read_run(run.path)))).text
