"""Attribute heads and their gate as a user trains and uses them, on a model that takes no time."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import correlation, mean, pstdev

import pytest
import torch

from posttrain.bindings import feedback
from posttrain.cli import main
from posttrain.data import graded_of, load_preferences, load_ratings
from posttrain.data.preferences import ranked_of
from posttrain.engine.scorer import load_scorer
from posttrain.errors import ModelError, UserError
from posttrain.models.attributes import even
from posttrain.objectives.reward_models import shares
from posttrain.recipes import evaluate_reward
from posttrain.recipes.evaluate_reward import EvaluateReward
from posttrain.recipes.reward_model import Scoring, attributes, run
from posttrain.runs import config_file, read_run
from posttrain.training import checkpoint
from posttrain.training.attributes import choices_of, fit_gate, read_all
from posttrain.training.reward import sequences_of
from posttrain.types import Message
from tests.recipes.folders import holds_a_merged_adapter, model_folder
from tests.recipes.test_reward_model import write


def rated(prompt: str, completion: str, kind: float, clear: float) -> dict:
    return {"prompt": prompt, "completion": completion, "ratings": {"kind": kind, "clear": clear}}


# "please" is kind, and "=" is clear; what counts depends on the prompt
PLAIN, ASKING = "a" * 12, "?" * 12
RATED = [
    row
    for i in range(12)
    for prompt in (f"{PLAIN}{i + 8}", f"{ASKING}{i + 8}")
    for row in (rated(prompt, f"please {2 * i}", 6.0, 2.0 + i % 2), rated(prompt, f"= {2 * i}", 1.0 + i % 2, 7.0))
]
PAIRS = [
    {"prompt": f"{prompt}{i + 20}", "chosen": said[first], "rejected": said[1 - first]}
    for i in range(40)
    for said in [(f"please {2 * (i % 12)}", f"= {2 * (i % 12)}")]
    for prompt, first in ((PLAIN, 0), (ASKING, 1))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def config(tmp_path: Path, model: str) -> Scoring:
    return Scoring(
        heads="attributes",
        ratings=write(tmp_path / "ratings.jsonl", RATED),
        dataset=write(tmp_path / "pairs.jsonl", PAIRS),
        model=model,
        eval_share=0.25,
        pairs_per_step=8,
        steps=30,
        lr=3e-3,
        warmup_steps=0,
        precision="float32",
    )


def scores(run: Path, *said: tuple[str, str]) -> list[float]:
    latest = checkpoint.latest(run / "checkpoints").path
    conversations = [[Message("user", prompt), Message("assistant", completion)] for prompt, completion in said]
    return [score for (score,) in load_scorer(str(latest), precision="float32")(conversations)]


def heldout_of(config: Scoring) -> list[dict]:
    sides = feedback.read(config, feedback.PAIRS)
    asked = {one.prompt[0].content for one in sides.heldout}
    return [row for row in PAIRS if row["prompt"] in asked]


def test_ratings_are_learned_and_told_attribute_by_attribute(config, tmp_path):
    found = run(config, output=tmp_path / "run", quiet=True)
    assert found.attributes == ("clear", "kind") and found.steps == 30
    assert found.after["correlation"] > 0.9 and "correlation" not in found.before  # zeros foretell the mean of each
    assert found.after["correlation"] == pytest.approx(
        (found.after["correlation/kind"] + found.after["correlation/clear"]) / 2
    )
    # whatever the prompt, the polite answer is the kind one and the other is the clear one: each is right after some
    asking = [row["rejected"].startswith("please") for row in heldout_of(config)]
    assert found.after["alone/clear"] == pytest.approx(sum(asking) / len(asking), abs=0.1)
    assert found.after["alone/kind"] == pytest.approx(1 - sum(asking) / len(asking), abs=0.1)
    assert found.after["gate/kind"] + found.after["gate/clear"] == pytest.approx(1.0)
    rows = read_run(found.run).metrics
    assert rows[1]["lr"] == config.lr > rows[2]["lr"]
    assert rows[-1]["error/kind"] < 0.5 and rows[-1]["loss"] < rows[1]["loss"]


def test_an_adapter_learns_ratings_and_is_saved_in_the_weights(config, tmp_path):
    pytest.importorskip("peft")
    found = run(replace(config, lora_rank=4, lr=0.02), output=tmp_path / "run", quiet=True)
    assert found.after["correlation"] > 0.9
    holds_a_merged_adapter(checkpoint.latest(found.run / "checkpoints").path)
    judged = [(row["prompt"], row[side]) for row in heldout_of(config) for side in ("chosen", "rejected")]
    said = scores(found.run, *judged)
    right = [chosen > rejected for chosen, rejected in zip(said[::2], said[1::2], strict=True)]
    assert sum(right) / len(right) == pytest.approx(found.after["accuracy"])
    margins = [chosen - rejected for chosen, rejected in zip(said[::2], said[1::2], strict=True)]
    told = found.after["margin"] / found.after["temperature"]
    assert sum(margins) / len(margins) == pytest.approx(told, rel=1e-2)


def test_the_gate_is_that_of_the_learned_pairs_for_the_heads_as_they_are(config, tmp_path):
    heldout = [{"prompt": "never", "chosen": "please 1", "rejected": "= 1"}]
    told = replace(config, eval_share=0.0, eval_dataset=write(tmp_path / "heldout.jsonl", heldout), steps=6)
    rows = [row | {"ratings": row["ratings"] | {"odd": float(i % 3)}} for i, row in enumerate(RATED)]
    three = replace(told, ratings=write(tmp_path / "three.jsonl", rows), decorrelate="clear")
    found = run(three, output=tmp_path / "run", quiet=True)
    scorer = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32")
    model = scorer.model
    rankings = [ranked_of(scorer.chat, (one,)) for one in load_preferences(config.dataset).items]
    rated = [graded_of(scorer.chat, one).example for one in load_ratings(three.ratings).items]
    left = shares(read_all(model, rated, microbatch_tokens=4096).attributes_EK, 0)
    assert model.mixture.shares == pytest.approx(left.tolist(), abs=1e-4)
    begins = even(model.body, [0.0, 1.0, 1.0], width=config.gate_width, seed=config.seed)
    begins = begins._replace(apart=0, shares=model.mixture.shares)
    read = read_all(model, sequences_of(rankings), microbatch_tokens=4096)
    expected = fit_gate(begins, choices_of(begins, read, rankings), seed=config.seed)
    assert expected.scale == pytest.approx(model.mixture.scale * found.after["temperature"], rel=1e-2)
    prompts = read.prompts_ED[::2]
    assert model.mixture.gate(prompts)[:, 0].tolist() == [0.0] * len(prompts)
    torch.testing.assert_close(model.mixture.gate(prompts), expected.gate(prompts), rtol=1e-2, atol=1e-3)
    assert (expected.gate(prompts) - begins.gate(prompts)).abs().max() > 0.01


def test_its_scores_are_calibrated_and_judged_like_those_of_any_reward_model(config, tmp_path):
    found = run(replace(config, steps=6), output=tmp_path / "run", quiet=True)
    asked = EvaluateReward(dataset=config.dataset, model=str(found.run), precision="float32")
    judged = evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)
    assert judged.summary()["members"] == 1 and judged.summary()["n"] == 80
    raw = run(replace(config, steps=6, calibrate=False), output=tmp_path / "raw", quiet=True)
    assert "temperature" not in raw.after
    said = [(f"{PLAIN}70", "please 7"), (f"{PLAIN}70", "= 7"), (f"{ASKING}9", "= 7")]
    calibrated, plain = (scores(one.run, *said) for one in (found, raw))
    ratio = (plain[0] - plain[2]) / (calibrated[0] - calibrated[2])
    assert ratio == pytest.approx(found.after["temperature"], rel=1e-3)
    middle = (found.after["score/chosen"] + found.after["score/rejected"]) / 2
    assert calibrated[0] == pytest.approx((plain[0] - middle) / found.after["temperature"], rel=1e-2, abs=1e-3)
    latest = checkpoint.latest(found.run / "checkpoints").path
    assert load_scorer(str(latest)).model.comparable


def test_a_gate_without_hidden_units_does_not_look_at_the_prompt(config, tmp_path, recwarn):
    found = run(replace(config, steps=6, gate_width=0), output=tmp_path / "run", quiet=True)
    gate = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32").model.mixture.gate
    one, other = gate(torch.randn(2, gate.inner.in_features)).tolist()
    assert one == other and one[0] != pytest.approx(0.5, abs=1e-3)
    assert not [warning for warning in recwarn if "zero-element" in str(warning.message)]


def test_without_pairs_the_weights_make_the_score(config, tmp_path, capsys):
    found = run(replace(config, dataset="", weights="clear=-0.5", steps=20), output=tmp_path / "run")
    assert "weights: clear=-0.5 kind=1; no pairs say otherwise" in capsys.readouterr().err
    assert "accuracy" not in found.after and found.after["correlation"] > 0.7
    kind, clear = scores(found.run, (f"{ASKING}3", "please 7"), (f"{ASKING}3", "= 7"))
    assert kind > clear
    scorer = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32")
    assert scorer.model.mixture.weights == (-0.5, 1.0) and scorer.model.mixture.scale == 2.0
    assert not scorer.model.comparable


def test_an_attribute_is_kept_out_of_the_score(config, tmp_path):
    """Responses that are longer are clearer here, a little more or less: apart from length little is left of that."""
    rows = [rated(f"{i}", "=" * (i % 5 + 1) + "!" * (i % 2), 3.0 * (i % 2) + i % 5, float(i % 5)) for i in range(40)]
    both = replace(config, ratings=write(tmp_path / "long.jsonl", rows), dataset="", steps=60, eval_share=0.0)
    follows = run(replace(both, weights="clear=0"), output=tmp_path / "follows", quiet=True)
    apart = run(replace(both, decorrelate="clear"), output=tmp_path / "apart", quiet=True)
    said = [(row["prompt"], row["completion"]) for row in rows]
    clear = [row["ratings"]["clear"] for row in rows]

    assert correlation(scores(follows.run, *said), clear) > 0.5
    assert abs(correlation(scores(apart.run, *said), clear)) < 0.15
    mixture = load_scorer(str(checkpoint.latest(apart.run / "checkpoints").path)).model.mixture
    assert mixture.apart == 0 and mixture.weights == (0.0, 1.0) and mixture.shares[0] == pytest.approx(1.0)


def test_a_resumed_run_equals_one_that_was_not_stopped(config, tmp_path):
    config = replace(config, steps=4, save_every=2, decay="constant")
    whole = run(config, output=tmp_path / "whole", quiet=True).run
    part = run(replace(config, steps=2), output=tmp_path / "part", quiet=True).run
    run(config, resume=part, quiet=True)
    timed = ("seconds/step", "tokens_per_second", "memory_gb")
    last = [{k: v for k, v in read_run(r).metrics[-1].items() if k not in timed} for r in (whole, part)]
    assert last[0] == last[1]
    assert [row["step"] for row in read_run(part).metrics] == [0, 1, 2, 3, 4]
    said = [(f"{PLAIN}3", "= 6"), (f"{ASKING}3", "please")]
    assert scores(whole, *said) == scores(part, *said)


def test_what_is_saved_before_the_gate_has_learned_cannot_score(config, tmp_path):
    found = run(replace(config, steps=6, save_every=2, eval_every=3, keep_last=9), output=tmp_path / "run", quiet=True)
    finished = {}
    for path in sorted((found.run / "checkpoints").glob("step-*")):
        step = int(path.name.rpartition("-")[2])
        about = json.loads((path / "config.json").read_text(encoding="utf-8"))["reward_attributes"]
        finished[step] = about["finished"]
        if not about["finished"]:
            with pytest.raises(ModelError, match=r"continue with `resume=RUN` \(`steps=N`"):
                load_scorer(str(path))
    assert finished == {2: False, 3: True, 4: False, 6: True}
    logged = [row["step"] for row in read_run(found.run).metrics if "evaluation/accuracy" in row]
    assert logged == [0, 3, 6]
    alone = run(replace(config, dataset="", steps=2, save_every=1), output=tmp_path / "alone", quiet=True)
    assert load_scorer(str(next((alone.run / "checkpoints").glob("step-*1")))).model.mixture.finished


def test_each_evaluation_begins_from_the_weights_alone(config, tmp_path):
    """The gate of the one before, learned further, would be another one."""
    once = run(replace(config, steps=3, eval_every=0), output=tmp_path / "once", quiet=True)
    often = run(replace(config, steps=3, eval_every=1), output=tmp_path / "often", quiet=True)
    said = [(f"{PLAIN}3", "= 6"), (f"{ASKING}3", "please")]
    assert scores(once.run, *said) == scores(often.run, *said)


def test_before_is_before_the_first_step_or_nothing(config, tmp_path):
    found = run(replace(config, dataset="", steps=4, eval_every=2), output=tmp_path / "run", quiet=True)
    assert found.before is None and "correlation" in found.after


def test_attributes_that_contradict_people_are_named(config, tmp_path, capsys):
    rows = [row | {"chosen": row["rejected"], "rejected": row["chosen"]} for row in PAIRS if row["prompt"][0] == "a"]
    told = replace(config, dataset=write(tmp_path / "other.jsonl", rows))
    run(told, output=tmp_path / "run")
    printed = capsys.readouterr().err
    assert "people choose the response with less 'kind'" in printed and "give `weights` kind=-1" in printed
    assert "more 'clear'" not in printed
    run(replace(told, weights="kind=-1"), output=tmp_path / "turned")
    assert "its weight says otherwise" not in capsys.readouterr().err


def test_what_has_a_weight_of_zero_is_not_learned(config, tmp_path):
    rows = [row | {"ratings": row["ratings"] | ({"stray": 3.0} if i == 0 else {})} for i, row in enumerate(RATED)]
    rows.append({"prompt": "1", "completion": "2", "ratings": {"stray": 4.0}})
    told = replace(config, ratings=write(tmp_path / "stray.jsonl", rows), steps=1, eval_share=0.0)
    found = run(replace(told, weights="stray=0"), output=tmp_path / "run", quiet=True)
    assert found.attributes == ("clear", "kind") and found.pairs == len(RATED)


def test_standard_units_are_those_of_what_is_learned(config, tmp_path):
    rows = [*RATED, rated("9", "long " * 80, 99.0, 99.0)]
    told = replace(config, ratings=write(tmp_path / "long.jsonl", rows), steps=1, eval_share=0.0, max_tokens=150)
    found = run(told, output=tmp_path / "run", quiet=True)
    assert found.dropped == 1
    units = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path)).model.units
    kind = [row["ratings"]["kind"] for row in RATED]
    assert (units.means[1], units.spreads[1]) == pytest.approx((mean(kind), pstdev(kind)))


def test_columns_are_of_the_ratings_and_pair_columns_of_the_pairs(config, tmp_path):
    answers = [{"prompt": row["prompt"], "answer": row["completion"], "ratings": row["ratings"]} for row in RATED]
    better = [{"prompt": row["prompt"], "better": row["chosen"], "rejected": row["rejected"]} for row in PAIRS]
    told = replace(
        config,
        ratings=write(tmp_path / "answers.jsonl", answers),
        dataset=write(tmp_path / "better.jsonl", better),
        columns="completion=answer",
        pair_columns="chosen=better",
        steps=1,
    )
    assert run(told, output=tmp_path / "run", quiet=True).pairs > 0


def test_few_pairs_are_enough_for_a_gate(config, tmp_path):
    few = replace(config, dataset=write(tmp_path / "few.jsonl", PAIRS[:3]), eval_share=0.0, steps=1)
    assert run(few, output=tmp_path / "run", quiet=True).steps == 1


def test_nothing_that_is_held_out_is_learned_from_ratings(config, tmp_path, capsys):
    heldout = [
        {"prompt": f"{PLAIN}9", "chosen": "6", "rejected": "7"},
        {"prompt": "none", "chosen": "6", "rejected": "7"},
    ]
    told = replace(config, eval_share=0.0, eval_dataset=write(tmp_path / "heldout.jsonl", heldout), steps=1)
    found = run(told, output=tmp_path / "run")
    assert found.pairs == len(RATED) - 2
    assert "2 rated responses answer prompts of held-out pairs" in capsys.readouterr().err
    assert "correlation" not in found.after and "accuracy" in found.after
    everything = [{"prompt": row["prompt"], "chosen": "6", "rejected": "7"} for row in RATED]
    with pytest.raises(UserError, match="all rated responses answer prompts of held-out pairs"):
        run(replace(told, eval_dataset=write(tmp_path / "all.jsonl", everything)), output=tmp_path / "all", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "kin=1"}, "did you mean 'kind'"),
        ({"weights": "kind"}, "cannot read the weight 'kind'"),
        ({"weights": "kind=much"}, "cannot read the weight 'kind=much'"),
        ({"weights": "kind=0 clear=0"}, "all attribute weights are 0"),
        ({"weights": "kind=0", "decorrelate": "clear"}, "all attribute weights are 0"),
        ({"weights": "kind=1 kind=2"}, "'kind' has two `weights`"),
        ({"weights": "kind=2", "decorrelate": "kind"}, "has weight 0; leave it out of `weights`"),
        ({"ratings": ""}, "`ratings` is required"),
        ({"weights": "kind=inf"}, "cannot read the weight 'kind=inf'"),
        ({"decorrelate": "clea"}, "did you mean 'clear'"),
        ({"gate_width": -1}, "`gate_width` must be 0 or more"),
        ({"dataset": "", "eval_dataset": "x.jsonl", "eval_share": 0.0}, "held-out pairs; pass training pairs too"),
        ({"margin": 1.0}, "`margin` is for `heads` preference; leave it out, or type `heads` preference"),
        ({"heads": "attribute"}, "did you mean 'attributes'"),
    ],
)
def test_wrong_options_are_refused(changes, message, config, tmp_path):
    with pytest.raises(UserError, match=message):
        run(replace(config, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_attribute_of_which_nothing_can_be_learned_is_refused(config, tmp_path):
    rows = [row | {"ratings": row["ratings"] | {"same": 0.1}} for row in RATED]
    with pytest.raises(UserError, match=r"all ratings of 'same' are equal.*`weights` same=0"):
        run(replace(config, ratings=write(tmp_path / "same.jsonl", rows)), output=tmp_path / "run", quiet=True)


def test_pairs_of_steps_are_refused(config, tmp_path):
    rows = [row | {"steps": ["first"]} for row in PAIRS]
    with pytest.raises(UserError, match=r"steps\.jsonl line 1 compares steps"):
        run(replace(config, dataset=write(tmp_path / "steps.jsonl", rows)), output=tmp_path / "run", quiet=True)


def test_the_command_line_takes_ratings(config, tmp_path, capsys):
    options = ["--ratings", config.ratings, "--model", config.model, "--steps", "1", "--eval-share", "0.25"]
    words = ["reward-model", "--heads", "attributes", *options, "--warmup-steps", "0"]
    code = main([*words, "--output", str(tmp_path / "run"), "--quiet"])
    printed = capsys.readouterr().out
    assert code == 0 and re.search(r"^correlation with held-out ratings: -?0\.\d+ after$", printed, re.MULTILINE)
    assert main([*words, "--trainers", "1"]) == 2
    assert "--heads attributes trains in one process; leave out --trainers" in capsys.readouterr().err


OLD = {
    "attributes": ("reward-model-attributes", ("ratings", "weights", "decorrelate", "pair_columns", "gate_width")),
    "preference": ("reward-model", ("label_smoothing", "margin", "center_rewards", "ensemble", "length_debias")),
}
"""The command of a run before there was --heads, and the options that no other command had."""


@pytest.mark.parametrize("heads", OLD)
def test_a_run_from_before_there_were_heads_goes_on(heads, config, tmp_path):
    changes = {} if heads == "attributes" else {"heads": heads, "ratings": ""}
    learned = run(replace(config, **changes, steps=2), output=tmp_path / "run", quiet=True).run
    command, own = OLD[heads]
    kept = tomllib.loads((learned / "config.toml").read_text())
    assert kept.pop("heads") == heads
    assert {name for _, names in OLD.values() for name in names} & kept.keys() == {*own}
    (learned / "config.toml").write_text(config_file.dumps(kept))
    about = json.loads((learned / "environment.json").read_text())
    del about["options"]["heads"]
    del about["rows"]
    (learned / "environment.json").write_text(json.dumps(about | {"command": command}))
    other = next(name for name in OLD if name != heads)
    assert main(["reward-model", "--resume", str(learned), "--heads", other]) == 2
    assert main(["reward-model", "--resume", str(learned), "--steps", "3", "--quiet"]) == 0
    found = read_run(learned)
    assert (found.command, found.config["heads"], len(found.metrics)) == ("reward-model", heads, 4)


def test_every_rated_response_is_met_once_an_epoch(config, tmp_path, monkeypatch):
    met = []
    right = attributes.rated_batch

    def batch(units, **options):
        met.extend(units)
        return right(units, **options)

    monkeypatch.setattr(attributes, "rated_batch", batch)
    run(replace(config, dataset="", eval_share=0.0, pairs_per_step=6, steps=0, epochs=1.0), output=tmp_path / "run")
    assert len(met) == len({one.example for one in met}) == len(RATED)
