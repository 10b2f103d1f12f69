import json
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from posttrain.bindings import feedback
from posttrain.data import ChatFormat, load_tokenizer
from posttrain.errors import TrainingError, UserError
from posttrain.models.footprint import read_shape
from posttrain.recipes.sft import SFT, run
from posttrain.runs.inputs import InputsChanged
from posttrain.training import checkpoint
from posttrain.training.local_learner import LocalLearner
from tests.recipes.folders import model_folder

ROWS = [{"prompt": f"{i}+{i}", "completion": str(2 * i)} for i in range(1, 7)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def config(model: Path, tmp_path: Path) -> SFT:
    """All six demonstrations in every batch, in float32."""
    dataset = write_rows(tmp_path / "train.jsonl", ROWS)
    return SFT(dataset, str(model), examples_per_step=6, steps=2, lr=1e-3, warmup_steps=0, precision="float32")


def metrics(run_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]


def weights(run_path: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run_path / "checkpoints")
    assert found is not None
    return checkpoint.load_tensors(found.path / "masters.safetensors")


def nll(model: Path, prompt: str, completion: str) -> list[float]:
    """Of a completion and its stop token, by transformers' own attention in float64, one conversation at a time."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    shown = tokenizer.encode(asked, add_special_tokens=False)
    said = tokenizer.encode(completion + "<|im_end|>", add_special_tokens=False)
    network = LlamaForCausalLM.from_pretrained(model, attn_implementation="eager").double()
    with torch.no_grad():
        logprobs = network(input_ids=torch.tensor([shown + said])).logits[0].log_softmax(-1)
    return [-logprobs[len(shown) + i - 1, token].item() for i, token in enumerate(said)]


def test_loss_is_the_mean_over_all_completion_tokens_of_the_batch_stop_tokens_included(config, model, tmp_path):
    rows = [{"prompt": "1+1", "completion": "2"}, {"prompt": "say it", "completion": "a long one"}]
    dataset = write_rows(tmp_path / "two.jsonl", rows)
    result = run(replace(config, dataset=dataset, examples_per_step=2, steps=1), output=tmp_path / "run", quiet=True)
    expected = [value for row in rows for value in nll(model, row["prompt"], row["completion"])]
    (row,) = metrics(result.run)
    assert row["tokens"] == len(expected) == 2 + 11
    assert row["loss"] == pytest.approx(math.fsum(expected) / 13, abs=1e-4)


def test_held_out_loss_is_per_token_and_before_the_first_and_after_the_last_step(config, model, tmp_path):
    heldout = write_rows(tmp_path / "held.jsonl", [{"prompt": "7+7", "completion": "14"}])
    result = run(replace(config, eval_dataset=heldout), output=tmp_path / "run", quiet=True)
    found = {row["step"]: row["evaluation/loss"] for row in metrics(result.run) if "evaluation/loss" in row}
    assert list(found) == [0, 2]
    assert found[0] == pytest.approx(math.fsum(nll(model, "7+7", "14")) / 3, abs=1e-4)
    assert (result.before, result.after) == (found[0], found[2])
    assert found[2] < found[0]


def test_what_is_held_out_in_a_file_is_not_also_trained_on(config, tmp_path):
    new = {"prompt": "9+9", "completion": "18"}
    alone = write_rows(tmp_path / "alone.jsonl", [new])
    mixed = write_rows(tmp_path / "mixed.jsonl", [ROWS[0], new, ROWS[3]])
    found = [
        run(replace(config, steps=1, eval_dataset=file), output=tmp_path / Path(file).stem, quiet=True).before
        for file in (alone, mixed)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_metrics_of_a_step(config, tmp_path):
    result = run(replace(config, steps=4, warmup_steps=2, lr=1.0), output=tmp_path / "run", quiet=True)
    rows = metrics(result.run)
    # half of the peak, the peak; then the cosine of two steps, at 0 and 1/2
    assert [row["lr"] for row in rows] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert {"step", "loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds/step", "memory_gb"} == set(
        rows[0]
    )
    assert rows[0]["tokens_per_second"] == pytest.approx(rows[0]["tokens"] / rows[0]["seconds/step"])
    assert (result.run / "report.html").is_file()


def test_dft_weighs_tokens_by_their_probability(config, tmp_path):
    """At the first step its loss is that of the same model's probabilities; the held-out loss is of both the same."""
    found = {}
    for name in ("sft", "dft"):
        options = replace(config, algorithm=name, steps=1, lr=0.0, eval_share=0.34, examples_per_step=3)
        result = run(options, output=tmp_path / name, quiet=True)
        found[name] = next(row["loss"] for row in metrics(result.run) if "loss" in row), result.after
    assert found["dft"][1] == found["sft"][1] and 0 < found["dft"][0] < 0.5 * found["sft"][0]
    with pytest.raises(UserError, match="dftt"):
        run(replace(config, algorithm="dftt"), output=tmp_path / "refused", quiet=True)


def test_epochs_become_steps(config, tmp_path):
    # 1.5 passes over 6 examples, 4 at a time: 9 / 4, rounded up
    config = replace(config, steps=0, epochs=1.5, examples_per_step=4)
    assert run(config, output=tmp_path / "run", quiet=True).steps == 3


def test_longer_examples_are_left_out_and_counted(config, tmp_path, capsys):
    rows = [*ROWS, {"prompt": "x" * 90, "completion": "y"}]
    config = replace(config, dataset=write_rows(tmp_path / "long.jsonl", rows), max_tokens=120)
    result = run(config, output=tmp_path / "run")
    assert (result.examples, result.dropped) == (6, 1)
    assert json.loads((result.run / "environment.json").read_text())["dropped"] == 1
    assert "1 of 7 examples are over 120 tokens and were left out" in capsys.readouterr().err


def test_every_held_out_row_that_is_not_used_is_said(config, tmp_path, capsys):
    rows = [{"prompt": f"{n}?" * (1 if n else 60), "completion": "y"} for n in range(9)]
    held = write_rows(tmp_path / "held.jsonl", [*ROWS, *rows, rows[-1]])
    run(replace(config, eval_dataset=held, eval_limit=8, max_tokens=120, warmup_steps=9), output=tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert f"{len(ROWS) + 1} held-out rows are also in the training data, or twice, and were left out" in said
    assert "of 9 held-out rows the first 8 are used" in said
    assert "1 of 8 held-out examples are over 120 tokens and were left out" in said
    assert "the learning rate never leaves its warmup" in said


def units_of(config):
    kind, chat = feedback.demonstrations(config.train_on), ChatFormat(load_tokenizer(config.model))
    return feedback.tokenize(config, kind, feedback.read(config, kind), chat, read_shape(config.model).context)


def test_the_longest_example_that_is_allowed_is_kept(config, tmp_path):
    lengths = [len(example.continuation) for example in units_of(config).learned]
    assert units_of(replace(config, max_tokens=max(lengths))).dropped == 0
    with pytest.raises(UserError, match="all 6 examples are longer than"):
        units_of(replace(config, max_tokens=min(lengths) - 1))


def test_turns_that_are_learned(config, model, tmp_path):
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bcd"},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "fg"},
    ]
    dataset = write_rows(tmp_path / "talk.jsonl", [{"messages": talk}])
    learned = {}
    for which in ("all", "last"):
        (example,) = units_of(replace(config, dataset=dataset, examples_per_step=1, train_on=which)).learned
        ids = [t for t, mine in zip(example.continuation, example.learned, strict=True) if mine]
        learned[which] = load_tokenizer(model).decode(ids)
    assert learned == {"all": "bcd<|im_end|>fg<|im_end|>", "last": "fg<|im_end|>"}


def test_a_run_that_is_resumed_equals_one_that_was_not_interrupted(config, tmp_path):
    # two of six in a batch, so that the place in the data matters
    config = replace(config, examples_per_step=2, decay="constant", eval_share=0.3, eval_every=2, steps=6, seed=4)
    whole = run(config, output=tmp_path / "whole", quiet=True)
    first = run(replace(config, steps=3), output=tmp_path / "parts", quiet=True)
    second = run(config, resume=first.run, quiet=True)
    assert (first.steps, second.steps) == (3, 6)
    same = ("step", "loss", "lr", "grad_norm", "tokens")
    ours, theirs = ([[row[key] for key in same] for row in metrics(r.run) if row["step"]] for r in (second, whole))
    assert ours == theirs
    for name, tensor in weights(whole.run).items():
        assert torch.equal(tensor, weights(second.run)[name]), name
    assert (second.before, second.after) == (whole.before, whole.after)


@pytest.mark.parametrize("cause", ["SIGINT", "SIGTERM"])
def test_a_signal_lets_the_step_end_and_saves(config, tmp_path, monkeypatch, request, cause):
    ours = signal.signal(signal.Signals[cause], signal.default_int_handler)  # in the background Ctrl-C is ignored
    request.addfinalizer(lambda: signal.signal(signal.Signals[cause], ours))
    step = LocalLearner.forward_backward
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.Signals[cause])
        return step(*args, **kwargs)

    monkeypatch.setattr(LocalLearner, "forward_backward", interrupted)
    result = run(replace(config, steps=5), output=tmp_path / "run", quiet=True)
    assert (result.steps, result.interrupted) == (2, cause)
    assert [path.name for path in (result.run / "checkpoints").iterdir()] == ["step-000002"]
    assert run(replace(config, steps=5), resume=result.run, quiet=True).interrupted == ""


def test_a_signal_in_the_last_step_stops_nothing(config, tmp_path, monkeypatch):
    step = LocalLearner.forward_backward

    def last(*args: Any, **kwargs: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(LocalLearner, "forward_backward", last)
    result = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    assert (result.steps, result.interrupted) == (1, "")


def test_best_checkpoint_is_that_of_the_lowest_held_out_loss(config, tmp_path):
    heldout = write_rows(tmp_path / "held.jsonl", [{"prompt": "7+7", "completion": "14"}])
    config = replace(config, lr=0.05, decay="constant", steps=6, save_every=1, keep_last=1)
    result = run(replace(config, eval_dataset=heldout, eval_every=1), output=tmp_path / "run", quiet=True)
    losses = {row["step"]: row["evaluation/loss"] for row in metrics(result.run) if row["step"]}
    best = min(losses, key=losses.__getitem__)
    assert best not in (1, 6), "choose another learning rate: this shows nothing"
    kept = sorted(path.name for path in (result.run / "checkpoints").iterdir() if path.is_dir())
    assert kept == [f"step-{best:06d}", "step-000006"]


def test_a_loss_that_is_not_finite_leaves_the_batch_and_names_the_last_checkpoint(config, tmp_path):
    config = replace(config, lr=1e38, decay="constant", steps=4, save_every=1)
    with pytest.raises(TrainingError, match=r"^step \d: the (loss|gradient's norm) is .*last checkpoint is") as e:
        run(config, output=tmp_path / "run", quiet=True)
    (kept,) = (tmp_path / "run").glob("failed-step-*.json")
    batch = json.loads(kept.read_text())
    assert len(batch["token_ids"]) == 6 and str(kept) in str(e.value)
    assert f"step {batch['step']}:" in str(e.value)
    assert f"step-{batch['step'] - 1:06d}" in str(e.value)


def test_an_adapter_alone_is_trained_and_saved(config, tmp_path):
    result = run(replace(config, lora_rank=2, lr=1e-2), output=tmp_path / "run", quiet=True)
    folder = result.run / "checkpoints" / "step-000002"
    assert (folder / "adapter_config.json").is_file() and not (folder / "model.safetensors").exists()
    assert all("lora" in name for name in weights(result.run))


GIVEN = {
    "prompt": [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "?"},
    ],
    "completion": [{"role": "assistant", "content": "2"}],
}


def forget(run_path: Path, **changes: Any) -> None:
    """Make a run's record of its rows that of an earlier version, which had none, or another one."""
    path = run_path / "environment.json"
    found = json.loads(path.read_text())
    del found["rows"], found["given"]
    path.write_text(json.dumps(found | changes))


def test_a_run_of_an_earlier_version_whose_rows_mean_something_else_now_asks_before_it_goes_on(config, tmp_path):
    config = replace(config, dataset=write_rows(tmp_path / "given.jsonl", [*ROWS, GIVEN]), steps=1)
    first = run(config, output=tmp_path / "run", quiet=True)
    forget(first.run)
    with pytest.raises(
        InputsChanged, match="the rows of `dataset` are read differently since the run started"
    ) as caught:
        run(replace(config, steps=2), resume=first.run, quiet=True)
    assert caught.value.names == ("dataset",)
    again = run(replace(config, steps=2), resume=first.run, quiet=True, accept_changes=["dataset"])
    assert [row["step"] for row in metrics(again.run)] == [1, 2]


def test_a_run_of_an_earlier_version_whose_rows_mean_the_same_goes_on(config, tmp_path):
    first = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    forget(first.run)
    assert run(config, resume=first.run, quiet=True).run == first.run


def test_rows_that_become_other_tokens_than_when_the_run_began_ask_before_it_goes_on(config, tmp_path):
    first = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    forget(first.run, rows="another digest")
    with pytest.raises(InputsChanged):
        run(config, resume=first.run, quiet=True)


def test_a_run_can_be_gone_on_from_by_its_name(config, tmp_path):
    first = run(config, output=tmp_path / "first", quiet=True)
    second = run(replace(config, model=str(first.run), steps=1, lr=0.0), output=tmp_path / "second", quiet=True)
    again = run(replace(config, steps=3), resume=first.run, quiet=True)
    assert metrics(second.run)[0]["loss"] == pytest.approx(metrics(again.run)[2]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": ""}, "`dataset` or `environment` is required"),
        ({"dataset": "gym:chain_sum"}, "makes tasks, not rows"),
        ({"examples_per_step": 0}, "`examples_per_step` must be 1 or more; got 0"),
        ({"save_every": 0}, "`save_every` must be 1 or more"),
        ({"keep_last": 0}, "`keep_last` must be 1 or more"),
        ({"microbatch_tokens": 60}, "the longest of the examples has"),
        ({"epochs": 0.0}, "`epochs` must be above 0"),
        ({"steps": -1}, "`steps` must be 0 or more"),
        ({"decay": "cosin"}, "did you mean 'cosine'"),
        ({"train_on": "lst"}, "did you mean 'last'"),
        ({"eval_share": 1.0}, "0 to below 1"),
        ({"eval_share": -0.1}, "0 to below 1"),
        ({"eval_share": 1e-9}, "leaves no rows to hold out"),
        ({"eval_share": 1 - 1e-9}, "leaves no rows to train on"),
        ({"eval_share": 0.1, "eval_dataset": "x"}, "exclude each other"),
        ({"eval_every": 5}, "`eval_every` needs held-out rows"),
        ({"precision": "float16"}, "unknown precision"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(config, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(replace(config, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_epoch_meets_every_example_once_in_an_order_that_the_seed_decides(config: SFT, tmp_path: Path):
    def losses(seed: int) -> list[float]:
        """One example a step, twice through; nothing is learned, so a loss tells which example it was."""
        alone = replace(config, examples_per_step=1, steps=12, lr=0.0, seed=seed)
        return [row["loss"] for row in metrics(run(alone, output=tmp_path / str(seed), quiet=True).run)]

    first, other = losses(0), losses(1)
    for found in (first, other):
        assert len(set(found[:6])) == 6 and sorted(found[:6]) == pytest.approx(sorted(found[6:]))
    assert sorted(first[:6]) == pytest.approx(sorted(other[:6]))
    assert first != other and first[:6] != first[6:]


def test_what_does_not_fit_the_model_s_context_is_left_out(config: SFT, tmp_path: Path):
    rows = [*ROWS, {"prompt": "1", "completion": "x" * 256}]  # the context is 256 tokens, of a byte each
    longer = replace(config, dataset=write_rows(tmp_path / "long.jsonl", rows), max_tokens=1024, steps=1)
    assert run(longer, output=tmp_path / "run", quiet=True).dropped == 1


def test_a_run_ends_when_the_held_out_loss_no_longer_falls(config, tmp_path):
    held = write_rows(tmp_path / "held.jsonl", [{"prompt": "7+7", "completion": "14"}])
    config = replace(config, eval_dataset=held, eval_every=1, steps=9, lr=0.0, stop_after=2)  # it learns nothing
    result = run(config, output=tmp_path / "run", quiet=True)
    assert (result.steps, result.interrupted) == (2, "")  # neither was better than before the first step
    with pytest.raises(UserError, match="`stop_after` needs evaluations: pass `eval_every` too"):
        run(replace(config, eval_every=0), output=tmp_path / "other", quiet=True)
