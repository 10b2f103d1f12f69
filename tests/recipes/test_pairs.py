"""The two recipes that learn from pairs: preference optimisation and reward models, on a model that takes no time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from posttrain import algorithms
from posttrain.data import Example, pack
from posttrain.errors import UserError
from posttrain.models.heads import load_reward_model
from posttrain.recipes import preference, reward_model
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.runs import read_run
from posttrain.runs.result import heldout_of
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

ROWS = [{"prompt": f"{i}+{i}", "chosen": str(2 * i), "rejected": f"it is {2 * i + 1}"} for i in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return write(tmp_path / "pairs.jsonl", ROWS)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def options(kind: type, dataset: str, model: str, **changes: Any) -> Any:
    """Four pairs a step, in float32."""
    common = {"pairs_per_step": 4, "steps": 3, "lr": 3e-3, "warmup_steps": 0, "precision": "float32"}
    return kind(dataset=dataset, model=model, **common | changes)


def train(config: Any, **where: Any) -> Any:
    where = {"quiet": True, **where}
    if isinstance(config, Scoring):
        return reward_model.run(config, **where)
    return preference.run(config, algorithms.preference(config.algorithm)(), **where)


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return checkpoint.load_tensors(found.path / "masters.safetensors")


KINDS = pytest.mark.parametrize("kind", [Preferences, Scoring])


@KINDS
def test_training_learns_pairs_and_says_what_it_found(kind, dataset, model, tmp_path):
    heldout = write(tmp_path / "heldout.jsonl", [*ROWS[:2], *({**row, "prompt": row["prompt"] + "?"} for row in ROWS)])
    config = options(kind, dataset, model, steps=12, eval_dataset=heldout)
    result = train(config, output=tmp_path / "run")
    assert (result.steps, result.pairs, result.dropped, result.interrupted) == (12, 12, 0, "")
    assert result.after["accuracy"] > 0.9 and result.after["loss"] < result.before["loss"]
    rows = read_run(result.run).metrics
    assert [row["step"] for row in rows] == list(range(13))
    assert result.before == {k.removeprefix("evaluation/"): v for k, v in rows[0].items() if "evaluation/" in k}
    assert {"loss", "grad_norm", "margin", "accuracy", "lr", "tokens_per_second"} <= rows[1].keys()
    assert "accuracy" in (result.run / "report.html").read_text(encoding="utf-8").lower()


@KINDS
def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(kind, dataset, model, tmp_path):
    config = options(kind, dataset, model, steps=6, save_every=2, keep_last=5)
    whole = train(config, output=tmp_path / "whole").run
    part = train(replace(config, steps=3), output=tmp_path / "part").run
    train(config, resume=part)
    first, second = weights(whole), weights(part)
    # a schedule's length is part of the configuration, and cosine decay depends on it: the first steps differ
    assert first.keys() == second.keys()
    constant = replace(config, decay="constant")
    whole = train(constant, output=tmp_path / "whole-constant").run
    part = train(replace(constant, steps=3), output=tmp_path / "part-constant").run
    train(constant, resume=part)
    first, second = weights(whole), weights(part)
    assert all(torch.equal(first[name], second[name]) for name in first)
    timed = ("seconds/step", "tokens_per_second", "memory_gb")
    curves = [[{k: v for k, v in row.items() if k not in timed} for row in read_run(r).metrics] for r in (whole, part)]
    assert curves[0] == curves[1]


def test_a_reward_model_s_folder_is_one_of_transformers_and_starts_another(dataset, model, tmp_path):
    result = train(options(Scoring, dataset, model, steps=12, lr=1e-2), output=tmp_path / "run")
    found = checkpoint.latest(result.run / "checkpoints")
    assert found is not None
    scorer = AutoModelForSequenceClassification.from_pretrained(found.path, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(found.path)

    def text(row: dict[str, str], side: str) -> str:
        said = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
        return tokenizer.apply_chat_template(said, tokenize=False)  # which ends at the stop token

    # padded to one length, as people score with transformers: the padding must not be what ends a sequence
    texts = [text(row, side) for row in ROWS for side in ("chosen", "rejected")]
    with torch.no_grad():
        inputs = tokenizer(texts, return_tensors="pt", add_special_tokens=False, padding=True, padding_side="right")
        scores = scorer(**inputs).logits[:, 0]
    ours = load_reward_model(str(found.path), dtype=torch.float32)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    rows = [Example.whole(tokens, [False] * len(tokens)) for tokens in ids]
    expected = torch.cat([ours.scores(pack([row], 1000)[0]) for row in rows]).detach()[:, 0]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert (scores[0::2] > scores[1::2]).all()
    again = train(options(Scoring, dataset, str(result.run), lr=0.0, steps=1), output=tmp_path / "again")
    assert read_run(again.run).metrics[0]["accuracy"] == 1.0


def test_an_adapter_learns_while_its_base_is_the_reference(dataset, model, tmp_path):
    config = options(Preferences, dataset, model, steps=12, lr=3e-2, lora_rank=4)
    result = train(config, output=tmp_path / "run")
    rows = read_run(result.run).metrics
    assert rows[0]["margin"] == pytest.approx(0.0, abs=1e-4) and rows[-1]["margin"] > 0.1
    assert all("lora" in name for name in weights(result.run))


@KINDS
def test_the_learning_rate_goes_up_and_down(kind, dataset, model, tmp_path):
    result = train(options(kind, dataset, model, steps=4, warmup_steps=2, lr=1e-3), output=tmp_path / "run")
    # half of the peak, the peak; then the cosine of two steps, at 0 and 1/2
    assert [row["lr"] for row in read_run(result.run).metrics] == pytest.approx([5e-4, 1e-3, 1e-3, 5e-4])


@KINDS
def test_pairs_that_are_too_long_are_left_out_and_counted(kind, dataset, model, tmp_path):
    rows = [*ROWS, {"prompt": "1", "chosen": "2", "rejected": "x" * 256}]
    config = options(kind, write(tmp_path / "long.jsonl", rows), model, max_tokens=200, steps=1)
    assert train(config, output=tmp_path / "run").dropped == 1
    # the model's own context of 256 is a limit as well
    assert train(replace(config, max_tokens=1024), output=tmp_path / "wide").dropped == 1
    # and so is a prompt
    rows = [*ROWS, {"prompt": "1" * 220, "chosen": "2", "rejected": "3"}]
    config = replace(config, dataset=write(tmp_path / "asked.jsonl", rows))
    assert train(config, output=tmp_path / "asked").dropped == 1


@KINDS
def test_a_step_of_more_pairs_than_there_are_takes_all_of_them_and_says_so(kind, dataset, model, tmp_path, capsys):
    config = replace(options(kind, dataset, model), pairs_per_step=13, steps=0, epochs=2.0)
    found = train(config, output=tmp_path / "run", quiet=False)
    assert len(read_run(found.run).metrics) == 2
    assert "`pairs_per_step=13`, and there are 12 pairs: a step takes all of them" in capsys.readouterr().err


@KINDS
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": ""}, "`dataset` is required"),
        ({"max_tokens": 5}, r"all \d+ pairs are longer than 5 tokens, the smaller of `max_tokens=5`"),
        ({"microbatch_tokens": 10}, r"type `microbatch_tokens=\d+` or more"),
        ({"pairs_per_step": 0}, "`pairs_per_step` must be 1 or more"),
        ({"epochs": 0.0, "steps": 0}, "`epochs` must be above 0"),
        ({"steps": -1}, "`steps` must be 0 or more"),
        ({"eval_every": 2}, "`eval_every` needs held-out rows"),
        ({"decay": "cosin"}, "did you mean 'cosine'"),
        ({"precision": "float23"}, "unknown precision 'float23'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(kind, changes, message, dataset, model, tmp_path):
    with pytest.raises(UserError, match=message):
        train(replace(options(kind, dataset, model), **changes), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_of_one_recipe_alone(dataset, model):
    with pytest.raises(UserError, match=r"`label_smoothing` must be 0 to below 0\.5"):
        train(options(Scoring, dataset, model, label_smoothing=0.5))
    with pytest.raises(UserError, match="`lora_rank` must be 0 or more"):
        train(options(Preferences, dataset, model, lora_rank=-1))


def test_a_batch_may_be_all_there_is(dataset, model, tmp_path):
    assert train(options(Scoring, dataset, model, pairs_per_step=12, steps=1), output=tmp_path / "run").steps == 1


def test_an_epoch_is_as_many_steps_as_it_takes(dataset, model, tmp_path):
    assert train(options(Scoring, dataset, model, steps=0, epochs=1.5), output=tmp_path / "run").steps == 5


# what each needs to be seen learning from twelve pairs in twelve steps; SPPO's target is a thousand nats away
RATES = {"sppo": 3e-4, "dpop": 1e-3}


@pytest.mark.parametrize("name", algorithms.PREFERENCE)
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_every_algorithm_learns_pairs(name, lora_rank, dataset, model, tmp_path):
    rate = 3e-2 if lora_rank else RATES.get(name, 3e-3)
    config = options(
        Preferences, dataset, model, algorithm=name, steps=12, lr=rate, lora_rank=lora_rank, eval_dataset=dataset + "x"
    )
    write(Path(dataset + "x.jsonl"), [{**row, "prompt": row["prompt"] + "?"} for row in ROWS])
    result = train(replace(config, eval_dataset=dataset + "x.jsonl"), output=tmp_path / "run")
    judged = "pair_accuracy" if name == "kto" else "accuracy"
    assert result.after[judged] > 0.7 and result.after["loss"] < result.before["loss"]


def test_single_responses_are_learned_from(model, tmp_path):
    rows = [{"prompt": row["prompt"], "completion": row["chosen"], "label": True} for row in ROWS]
    rows += [{"prompt": row["prompt"], "completion": row["rejected"], "label": False} for row in ROWS[:6]]
    config = options(
        Preferences, write(tmp_path / "thumbs.jsonl", rows), model, algorithm="kto", steps=15, eval_share=0.2
    )
    result = train(config, output=tmp_path / "run")
    assert 12 <= result.pairs < 18 and result.after["loss"] < result.before["loss"] == pytest.approx(0.5, abs=1e-4)
    assert result.after["reward/good"] > result.after["reward/bad"] + 1
    assert "pair_accuracy" not in result.after
    first = read_run(result.run).metrics[1]
    assert {"divergence", "reward/good", "logprob/bad", "length/good"} <= first.keys()


def test_of_judged_responses_one_alone_must_fit_a_micro_batch(dataset, model, tmp_path):
    config = options(Preferences, dataset, model, steps=1, max_tokens=200)
    with pytest.raises(UserError, match=r"`microbatch_tokens=(\d+)`") as refused:
        train(replace(config, microbatch_tokens=10), output=tmp_path / "a")
    needed = int(str(refused.value).split("`microbatch_tokens=")[1].split("`")[0])
    with pytest.raises(UserError, match="type `microbatch_tokens="):
        train(replace(config, microbatch_tokens=needed - 1), output=tmp_path / "b")
    alone = replace(config, algorithm="kto", microbatch_tokens=needed - 1)  # the two of a pair need not be together
    assert train(alone, output=tmp_path / "c").steps == 1


def test_algorithms_that_need_no_reference_hold_none(dataset, model, tmp_path, monkeypatch):
    def refuse(policy):
        raise AssertionError("a reference was made")

    monkeypatch.setattr(preference, "reference_for", refuse)
    for name in ("simpo", "orpo"):
        train(options(Preferences, dataset, model, algorithm=name, steps=1), output=tmp_path / name)
    with pytest.raises(AssertionError, match="a reference was made"):
        train(options(Preferences, dataset, model, algorithm="tdpo", steps=1), output=tmp_path / "tdpo")


def test_what_was_held_out_is_read_from_the_log():
    rows = [{"step": 0, "evaluation/loss": 0.7}, {"step": 1, "loss": 0.6}, {"step": 2, "evaluation/loss": 0.5}]
    assert heldout_of(rows) == ({"loss": 0.7}, {"loss": 0.5})
    assert heldout_of(rows[1:2]) == (None, None)


@KINDS
def test_an_epoch_meets_every_pair_once_in_an_order_that_the_seed_decides(kind, dataset, model, tmp_path):
    def lengths(seed: int) -> list[float]:
        """One pair a step, nothing learned: the gradient tells which pair it was."""
        config = options(kind, dataset, trained, pairs_per_step=1, steps=24, lr=0.0, seed=seed)
        return [round(row["grad_norm"], 4) for row in read_run(train(config, output=tmp_path / str(seed)).run).metrics]

    trained = model
    if kind is Scoring:  # whose fresh head would be drawn from the seed, too
        trained = str(train(options(Scoring, dataset, model, steps=1), output=tmp_path / "head").run)
    first, other = lengths(0), lengths(1)
    for found in (first, other):
        assert len(set(found[:12])) > 10 and sorted(found[:12]) == pytest.approx(sorted(found[12:]), rel=1e-2)
    assert sorted(first[:12]) == pytest.approx(sorted(other[:12]), rel=1e-2)
    assert first != other


@KINDS
def test_pairs_that_cannot_be_compared_are_counted_on_the_terminal(kind, model, tmp_path, capsys):
    rows = [
        {"chosen": f"\n\nHuman: {i}\n\nAssistant: a", "rejected": f"\n\nHuman: {i}\n\nAssistant: b"} for i in range(4)
    ]
    rows.append({"chosen": "\n\nHuman: 1\n\nAssistant: a", "rejected": "\n\nHuman: 2\n\nAssistant: b"})
    config = options(kind, write(tmp_path / "hh.jsonl", rows), model, steps=1)
    assert train(config, output=tmp_path / "run", quiet=False).pairs == 4
    assert (
        "1 of 5 pairs left out: hh.jsonl line 5: 'chosen' and 'rejected' answer different prompts"
        in capsys.readouterr().err
    )


def test_no_second_model_is_held_where_logprobs_are_all_that_is_needed(model, dataset, tmp_path, monkeypatch):
    held = []
    right = preference.reference_for
    monkeypatch.setattr(preference, "reference_for", lambda policy: held.append(policy) or right(policy))
    for number, (name, lora_rank, expected) in enumerate(
        [("dpo", 0, 0), ("tdpo", 0, 1), ("kto", 0, 1), ("simpo", 0, 0), ("dpo", 2, 1)]
    ):
        held.clear()
        train(options(Preferences, dataset, model, algorithm=name, lora_rank=lora_rank), output=tmp_path / str(number))
        assert len(held) == expected, name


def test_what_the_reference_said_is_what_it_said_before_training(model, dataset, tmp_path):
    config = options(Preferences, dataset, model, eval_share=0.25, steps=4, epochs=2)
    found = read_run(train(config, output=tmp_path / "run").run).metrics
    assert found[0]["evaluation/margin"] == pytest.approx(0.0, abs=1e-4) and found[0]["evaluation/pairs"] == 3
    assert found[1]["margin"] == pytest.approx(0.0, abs=1e-4)
    assert found[-1]["margin"] > 0.05  # pairs of the first step again, by now learned
