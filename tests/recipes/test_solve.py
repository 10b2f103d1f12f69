"""`solve` with a scripted engine: from samples to its page, its plot, and what it refuses."""

import json
from dataclasses import replace

import pytest
import torch

from posttrain.data import ChatFormat, load_tokenizer
from posttrain.engine.policy import load_policy
from posttrain.engine.scorer import ScorerFacts
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import UserError
from posttrain.evaluation.voting import Answered, accuracy_of
from posttrain.evaluation.ways import points
from posttrain.models.heads import load_reward_model, load_step_model
from posttrain.options.evaluation import Solve
from posttrain.recipes import evaluate as recipe
from posttrain.recipes.evaluate import run
from posttrain.recipes.evaluate.solve import _answered, _positive, _signed, chart_of, solve
from posttrain.recipes.evaluate.suites import asked
from posttrain.report.chart import picture
from posttrain.rewards import MathVerifier, NumberVerifier
from posttrain.runs import jsonl
from posttrain.types import Group, Row, Score, StopReason, Task, Trajectory, Turn
from tests.data.families import of_family
from tests.recipes.folders import model_folder

CHAT = ChatFormat(of_family("smollm2"))
SAID = {"a": "77377777", "b": "37757377", "c": "33733333"}


def test_the_plot_has_the_intervals_of_the_gains():
    chosen = points([Answered([*said], [one == "7" for one in said], [10] * 4) for said in ("7733", "7333")])
    chart = chart_of(chosen)
    majority = next(series for series in chart.series if series.name == "majority")
    four = next(point for point in chosen if (point.way, point.samples) == ("majority", 4))
    assert [x for x, _ in majority.points] == [10, 20, 40]
    assert majority.bars[-1] == (40, *(0.375 + end for end in four.over_one_ci95))
    assert picture(chart).count('class="raw') == sum(len(series.bars) for series in chart.series)


@pytest.fixture
def engine(monkeypatch):
    """An engine that gives its answers one after another."""
    said = {question: iter(f"####{answer}" for answer in answers) for question, answers in SAID.items()}

    def script(request):
        question = CHAT.decode(request.token_ids).removesuffix("assistant\n").strip()[-1]
        return [*CHAT.tokenizer.encode(next(said[question])), max(CHAT.stop_ids)]

    scripted = ScriptedEngine(script, CHAT.stop_ids)
    monkeypatch.setattr(recipe, "load_policy", lambda *a, **k: replace(load_policy(*a, **k), engine=scripted))


@pytest.fixture
def options(tmp_path):
    rows = tmp_path / "tasks.jsonl"
    rows.write_text("".join(json.dumps({"prompt": q, "answer": "7", "id": q}) + "\n" for q in SAID))
    model = str(model_folder(tmp_path / "model"))
    return Solve(dataset=str(rows), model=model, reward="numbers", samples=8, max_new_tokens=16, precision="float32")


def test_a_run_from_samples_to_its_page(options, engine, tmp_path):
    result = solve(options, output=tmp_path / "run", quiet=True)
    by = {(point.way, point.samples): point for point in result.points}
    assert by["one sample", 1].accuracy == pytest.approx((7 + 5 + 1) / 24)
    assert by["majority", 8].accuracy == pytest.approx(2 / 3) and by["oracle", 8].accuracy == 1.0
    assert [row["way"] for row in jsonl.read(result.evaluation.run / "points.jsonl")] == [p.way for p in result.points]
    page = result.evaluation.report.read_text()
    assert "What more samples buy" in page and "majority, until settled" in page and "<svg" in page
    assert any(line.startswith("majority, by difficulty  8") for line in result.lines()) is False
    assert json.loads(json.dumps(result.summary()))["points"][0]["way"] == "one sample"


def test_a_reward_that_says_nothing_of_right_is_refused(options, engine, tmp_path):
    (tmp_path / "long.py").write_text("def long(completion):\n    return 10.0 * len(completion)\n")
    for reward in (f"{tmp_path / 'long.py'}:long", "length_target"):
        with pytest.raises(UserError, match="needs a `reward` that says what is right"):
            solve(replace(options, reward=reward), output=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()  # nothing was sampled


def test_answers_that_the_verifier_takes_for_one_are_one_vote():
    """50% and 0.5, and a formula written in two ways."""
    for verifier in (NumberVerifier(), MathVerifier()):
        found = _answered(group_of(["3", "50%", "3", "0.5", "50%"]), "right", verifier.alike)
        assert found.answers == ["3", "50%", "3", "50%", "50%"]
    formulas = _answered(group_of([r"\frac{x}{2}", "x/2", "x", "(", None]), "right", MathVerifier().alike)
    assert formulas.answers == [r"\frac{x}{2}", r"\frac{x}{2}", "x", "(", None]


def group_of(said):
    """Of samples that a verifier has read so; None is unparsed."""
    rows = [
        Row(
            trajectory=Trajectory((Turn((1,), (2,), (-1.0,), StopReason.STOP, "a"),)),
            episode=number,
            scores={"right": Score(0.0, answer, unparsed=answer is None)},
            reward=0.0,
        )
        for number, answer in enumerate(said)
    ]
    return Group(task=Task(()), rows=tuple(rows))


def test_more_votes_never_count_less():
    """Three votes of -0.5 against one of -0.6: their sums are -1.5 and -0.6."""
    problem = Answered(["7", "7", "7", "8"], [True, True, True, False], scores=[-0.5, -0.5, -0.5, -0.6])
    assert accuracy_of("weighted", _positive(problem), 4) == 1.0 > accuracy_of("weighted", problem, 4)
    assert _positive(replace(problem, scores=[9e3] * 4)).scores[0] > 1e300


def test_which_scores_may_be_negative(options):
    steps, responses = (
        ScorerFacts("a", 1, True, 64, frozenset(), steps=True),
        ScorerFacts("b", 1, True, 64, frozenset()),
    )
    options = replace(options, reward_model="a b")
    assert _signed(options, [responses]) and _signed(options, [steps, responses]) and not _signed(options, [steps])
    assert _signed(replace(options, step_aggregation="sum"), [steps])
    assert _signed(replace(options, ensemble_aggregation="uncertain"), [steps])


def test_one_sample_is_not_enough(options):
    with pytest.raises(UserError, match="samples"):
        replace(options, samples=1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"beams": 8}, "`beams` needs a process reward model"),
        ({"lookahead": 1}, "`lookahead` needs `beams`"),
        ({"beams": 2, "reward_model": "runs/prm"}, "`beams` must be at least `expansions`, 4; got 2"),
        ({"beams": 8, "reward_model": "runs/prm", "environment": "mine.py:Game"}, "drop one"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, words, told):
    with pytest.raises(UserError, match=told):
        replace(options, **words)


def test_a_search_by_a_model_of_responses_is_refused_before_sampling(options, engine, tmp_path):
    made = load_reward_model(options.model, dtype=torch.float32)
    made.save(tmp_path / "scores", padding=0)
    load_tokenizer(options.model).save_pretrained(tmp_path / "scores")
    with pytest.raises(UserError, match=r"`beams` needs a process reward model, and .* scores whole responses"):
        solve(replace(options, beams=8, reward_model=str(tmp_path / "scores")), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_search(options, tmp_path):
    """Of a model and a head that were drawn, from options to the table."""
    made = load_step_model(options.model, dtype=torch.float32)
    torch.manual_seed(0)
    made.head.data.normal_(std=0.5)
    made.save(tmp_path / "prm", padding=0)
    load_tokenizer(options.model).save_pretrained(tmp_path / "prm")
    config = replace(options, samples=2, beams=4, expansions=2, lookahead=1, reward_model=str(tmp_path / "prm"))
    result = solve(config, output=tmp_path / "run", quiet=True)
    ways = [(point.way, point.samples) for point in result.points[-4:]]
    assert ways == [(way, n) for way in ("beam search", "beam search, lookahead 1") for n in (2.0, 4.0)]
    beam, wide = result.points[-4:-2]
    assert 0 < beam.tokens < wide.tokens and "beam search" in result.evaluation.report.read_text()


def test_a_baseline_of_the_same_title_is_not_searched(options, engine, tmp_path):
    config = replace(options, baseline=options.model, samples=4)
    part = recipe.prepare(asked(config)[0])
    searched = []
    run(config, output=tmp_path / "run", quiet=True, part=replace(part, then=searched.append))
    assert len(searched) == 1
