"""Exported folders: plain transformers computes what was trained; nothing is left where anything fails; the card."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from posttrain import cli
from posttrain.errors import ModelError, UserError
from posttrain.export import checking
from posttrain.models.load import load_model
from posttrain.models.lora import add_lora
from posttrain.recipes import export, reward_model, sft
from posttrain.recipes.export import ExportHF, ExportMerge, new_folder
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.sft import SFT
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

peft = pytest.importorskip("peft")

ROWS = [{"prompt": f"{i}+{i}", "completion": str(2 * i)} for i in range(12)]
ADAPTER = {"lora_rank": 2, "lora_alpha": 6.0, "lora_dora": True, "lora_modules_to_save": "embed_tokens norm"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs, by what they trained."""
    where = tmp_path_factory.mktemp("made")
    model = str(model_folder(where / "base"))
    said, pairs = where / "said.jsonl", where / "pairs.jsonl"
    said.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    judged = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in ROWS]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in judged))
    common: dict[str, Any] = {"steps": 3, "lr": 2e-2, "warmup_steps": 0, "precision": "float32"}
    config = SFT(str(said), model, examples_per_step=4, eval_share=0.3, **common)
    found = {"adapter": replace(config, **ADAPTER), "model": config}
    runs = {name: sft.run(one, output=where / name, quiet=True).run for name, one in found.items()}
    scoring = Scoring(str(pairs), model, pairs_per_step=4, **common)
    return runs | {"base": where / "base", "scores": reward_model.run(scoring, output=where / "scores", quiet=True).run}


def logprobs(folder: Path, text: str = "two and two are four") -> torch.Tensor:
    """By plain transformers, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return checking.reloaded_logprobs(folder, [tokenizer.encode(text)])


def ours(folder: Path, text: str = "two and two are four") -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return checking.trained_logprobs(load_model(str(folder), dtype=torch.float32), [tokenizer.encode(text)])


def best(run: Path) -> Path:
    found = checkpoint.best(run / "checkpoints") or checkpoint.latest(run / "checkpoints")
    assert found is not None
    return found.path


def test_a_merged_adapter_is_a_whole_model_for_plain_transformers(made, tmp_path):
    result = export.run(ExportMerge(str(made["adapter"]), str(tmp_path / "out")))
    out = result.output
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} <= set(result.files)
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(result.files)
    assert not [name for name in result.files if "adapter" in name or "optimizer" in name or "masters" in name]
    trained = ours(best(made["adapter"]))
    torch.testing.assert_close(logprobs(out), trained, rtol=0, atol=1e-4)
    assert result.exact.largest < 1e-4 and result.moved.mean > 0.01 and result.dtype == "float32"
    assert (logprobs(made["base"]) - trained).abs().max() > 0.01
    tokenizer = AutoTokenizer.from_pretrained(out)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = AutoModelForCausalLM.from_pretrained(out)
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in written.generation_config.eos_token_id
    assert written.generate(**asked, max_new_tokens=3, do_sample=False).shape[1] > asked["input_ids"].shape[1]
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_in_bfloat16_it_is_rounded_once_and_within_the_bound(made, tmp_path):
    result = export.run(ExportMerge(str(best(made["adapter"])), str(tmp_path / "out"), dtype="bfloat16"))
    assert result.dtype == "bfloat16" and result.exact.largest < 1e-4
    assert 0 < result.written.mean < checking.ROUNDED
    assert {t.dtype for t in load_file(result.output / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_merge_is_not_written(made, tmp_path, monkeypatch, dtype):
    right = export.plain_network

    def wrong(model, base):
        network = right(model, base)
        with torch.no_grad():
            network.model.layers[1].mlp.up_proj.weight.mul_(1.05)
        return network

    monkeypatch.setattr(export, "plain_network", wrong)
    with pytest.raises(ModelError, match=r"computes other logprobs.*at most 0\.001 is allowed; nothing was written"):
        export.run(ExportMerge(str(made["adapter"]), str(tmp_path / "out"), dtype=dtype))
    assert list(tmp_path.iterdir()) == []


TORN = ((ExportMerge, "adapter"), (ExportHF, "model"))


def test_weights_that_are_torn_when_written_are_not_kept(made, tmp_path, monkeypatch):
    right = export.save_generation

    def torn(model, tokenizer, folder):
        right(model, tokenizer, folder)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.mlp.up_proj.weight"] *= 3
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(export, "save_generation", torn)
    merged, copied = (kind(str(made[name]), str(tmp_path / "x")) for kind, name in TORN)
    for config in (merged, copied):
        with pytest.raises(ModelError, match="computes other logprobs than what was trained"):
            export.run(config)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_is_on_the_largest_where_nothing_is_rounded_and_on_the_mean_where_it_is():
    near = checking.Difference(mean=1e-5, largest=2e-3)
    with pytest.raises(ModelError, match=r"largest difference 0\.002 nats"):
        checking.refuse_far("it", near, rounded=False)
    checking.refuse_far("it", near, rounded=True)
    with pytest.raises(ModelError, match=r"mean difference 0\.06 nats.*type `dtype=.float32.`"):
        checking.refuse_far("it", checking.Difference(0.06, 0.06), rounded=True)
    for rounded in (False, True):
        with pytest.raises(ModelError):
            checking.refuse_far("it", checking.Difference(float("nan"), float("nan")), rounded=rounded)


def test_an_adapter_stays_one_and_a_whole_model_is_copied_byte_for_byte(made, tmp_path):
    adapter = export.run(ExportHF(str(made["adapter"]), str(tmp_path / "adapter")))
    assert adapter.form == "adapter" and "adapter_model.safetensors" in adapter.files
    assert "model.safetensors" not in adapter.files
    assert adapter.written.largest < 1e-4 and "AutoPeftModelForCausalLM" in (adapter.output / "README.md").read_text()
    network = peft.AutoPeftModelForCausalLM.from_pretrained(adapter.output, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(adapter.output).encode("two and two are four")
    found = checking.plain_logprobs(network.eval(), [ids])
    torch.testing.assert_close(found, ours(best(made["adapter"])), rtol=0, atol=1e-4)
    whole = export.run(ExportHF(str(made["model"]), str(tmp_path / "model")))
    assert whole.form == "model"
    assert not [name for name in whole.files if name.startswith(("optimizer", "masters", "state", "checksums"))]
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        assert (whole.output / name).read_bytes() == (best(made["model"]) / name).read_bytes()
    again = export.run(ExportHF(str(whole.output), str(tmp_path / "again")))  # a folder without a run
    assert "no run directory was at hand" in (again.output / "README.md").read_text()


@pytest.mark.parametrize("settings", [{"do_sample": False, "temperature": 0.9, "top_p": 0.6}, {"pad_token_id": -1}])
def test_settings_of_generation_that_transformers_would_not_write_are_kept(made, tmp_path, settings):
    """As those of published models; sft and sampling take them."""
    base = shutil.copytree(made["base"], tmp_path / "base")
    (base / "generation_config.json").write_text(json.dumps(settings))
    adapted = add_lora(load_model(str(base), dtype=torch.float32), rank=2)
    adapted.save(tmp_path / "adapter")
    for kind, model in ((ExportHF, base), (ExportHF, tmp_path / "adapter"), (ExportMerge, tmp_path / "adapter")):
        out = export.run(kind(str(model), str(tmp_path / f"{kind.__name__}-{model.name}"))).output
        kept = json.loads((out / "generation_config.json").read_text())
        assert {name: kept.get(name) for name in settings if settings[name]} == {k: v for k, v in settings.items() if v}
        assert AutoTokenizer.from_pretrained(base).eos_token_id in kept["eos_token_id"]


@pytest.mark.parametrize("config", ["", "{}", '{"model_type": "llama", "hidden_size": "x"}', "["])
def test_a_folder_without_a_model_is_refused_before_it_is_copied(made, tmp_path, config, monkeypatch):
    monkeypatch.setattr(export, "copy_model", lambda source, target: pytest.fail("it was copied"))
    folder = shutil.copytree(made["base"], tmp_path / "model")
    (folder / "config.json").write_text(config)
    if not config:
        (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="cannot load a language model from"):
        export.run(ExportHF(str(folder), str(tmp_path / "out")))


def test_an_adapters_run_whose_base_has_moved_says_what_makes_it_work(tmp_path):
    """Its folder is a checkpoint, in which nothing may be changed by hand."""
    base, said = model_folder(tmp_path / "base"), tmp_path / "said.jsonl"
    said.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = SFT(str(said), str(base), steps=1, examples_per_step=4, precision="float32", lora_rank=2)
    run = sft.run(config, output=tmp_path / "run", quiet=True).run
    moved = base.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="which was not found") as caught:
        export.run(ExportHF(str(run), str(tmp_path / "out")))
    typed = shlex.split(str(caught.value).partition(": ")[2].replace("MODEL", str(moved)))
    subprocess.run(typed, check=True)
    assert export.run(ExportHF(str(run), str(tmp_path / "out"))).form == "adapter"


def test_a_reward_model_loads_as_a_classifier(made, tmp_path):
    result = export.run(ExportHF(str(made["scores"]), str(tmp_path / "out")))
    assert result.form == "reward model"
    network = AutoModelForSequenceClassification.from_pretrained(result.output)
    assert network(input_ids=torch.tensor([[5, 6, 7]])).logits.shape == (1, 1)
    assert "AutoModelForSequenceClassification" in (result.output / "README.md").read_text()


def test_the_card_says_what_was_trained_on_what_how_and_what_is_not_known(made, tmp_path):
    result = export.run(ExportMerge(str(made["adapter"]), str(tmp_path / "out"), title="Sums *of* two"))
    card = (result.output / "README.md").read_text()
    config = (made["adapter"] / "config.toml").read_text()
    data = made["adapter"].parent / "said.jsonl"
    assert card.startswith("---\nbase_model: ") and "library_name: transformers\n" in card
    assert "# Sums \\*of\\* two\n" in card
    assert str(made["adapter"].parent / "base") in card and "supervised fine-tuning" in card
    assert hashlib.sha256(data.read_bytes()).hexdigest() in card and "when the run began" in card
    assert "| `lora_alpha` | `6.0` |" in card and "| `use_dora` | `true` |" in card and "| `lr` | `0.02` |" in card
    assert "lora_alpha = 6.0" in config
    rows = [json.loads(line) for line in (made["adapter"] / "metrics.jsonl").read_text().splitlines()]
    assert f"| `loss` | {rows[0]['evaluation/loss']:.4g} | {rows[-1]['evaluation/loss']:.4g} |" in card
    for said in ("What the results do not show", "were not examined", "has no interval", "one run with one seed"):
        assert said in card
    assert "transformers 5" in card and "AutoModelForCausalLM.from_pretrained" in card


@pytest.mark.parametrize("command", ["merge", "hf"])
def test_mistakes_are_one_line_and_write_nothing(command, made, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    run = str(made["adapter"])
    wrong = [
        ([], "--model RUN, CHECKPOINT or FOLDER"),
        (["--model", run], "--output FOLDER are"),
        (["--model", run, "--output", str(tmp_path / "full")], "exists and is not an empty folder"),
        (["--model", run, "--output", str(tmp_path / "file")], "exists and is not an empty folder"),
        (["--model", "OWNER/NAME", "--output", str(tmp_path / "x")], "'OWNER/NAME' is no folder here"),
        (["--model", str(tmp_path / "none"), "--output", str(tmp_path / "x")], "no model '"),
    ]
    if command == "merge":
        wrong += [
            (
                ["--model", str(made["model"]), "--output", str(tmp_path / "x")],
                "is not an adapter, so there is nothing",
            ),
            (["--model", run, "--output", str(tmp_path / "x"), "--dtype", "int8"], "unknown --dtype 'int8'"),
        ]
    for words, says in wrong:
        assert cli.main(["export", command, *words]) == 2
        told = capsys.readouterr().err
        assert says in told and told.count("\n") == 1, told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_an_empty_folder_is_taken_and_the_answer_is_json(made, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert cli.main(["export", "hf", "--model", str(made["model"]), "--output", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["form"] == "model" and found["written"]["largest"] < 1e-4 and found["output"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "README.md").is_file()


def test_a_damaged_checkpoint_is_not_exported(made, tmp_path):
    folder = tmp_path / "step-000003"
    folder.mkdir()
    for path in best(made["adapter"]).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(Exception, match=r"is damaged: adapter_model\.safetensors has 4 bytes"):
        export.run(ExportMerge(str(folder), str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_what_a_killed_process_of_the_same_number_left_is_in_nobodys_way(tmp_path):
    """In a container every run may have process number 1."""
    (tmp_path / f".out.writing-{os.getpid()}").mkdir()
    with new_folder(tmp_path / "out") as new:
        (new / "file").write_text("x")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out" / "file").read_text() == "x"
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".out.writing-{os.getpid()}", "out", "plain"]


def test_no_output_is_asked_for_first():
    with pytest.raises(UserError, match="--output FOLDER are"):
        export.run(ExportHF("x"))
