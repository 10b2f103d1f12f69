"""`posttrain verify --import`: each planted fault of the gallery is named, right dumps pass, bad files are one line."""

import json
from fractions import Fraction

import pytest
import torch
from safetensors.torch import save_file

from posttrain.cli import main
from posttrain.errors import DataError
from posttrain.options.evaluation import Verify
from posttrain.recipes.verify import run
from posttrain.recipes.verify.imported import verify_dump
from tests.recipes.dump_gallery import FAULTS, RIGHT, dump, parts, write


def failed(items):
    return {item.name: item.detail for item in items if not item.passed}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_dump_passes(name, tmp_path):
    make, words = RIGHT[name]
    items = {item.name: item for item in verify_dump(str(write(tmp_path / "right.jsonl", make())))}
    assert failed(items.values()) == {} and len(items) == 9
    assert all(item.measured is not None for item in items.values()) and words in items["advantages"].detail


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(name, tmp_path):
    fault = FAULTS[name]
    found = failed(verify_dump(str(write(tmp_path / f"{name}.jsonl", fault.make()))))
    assert fault.words in found.get(fault.item, f"passed; failed: {found}")
    assert set(found) <= {fault.item, *ALSO.get(name, ())}


# what a fault is seen by besides: a token that nobody sampled has no logprob, and so on
ALSO = {"top-p": ["length"], "temperature": ["length"], "not-finite": ["first update", "loss"]}


def lines_of(tmp_path, lines, name="dump.jsonl"):
    return str(write(tmp_path / name, lines))


def as_tensors(lines, path):
    """The same dump as safetensors."""
    header, updates, rows = parts(lines)
    flat = {
        name: torch.tensor([value for row in rows for value in row[name]], dtype=torch.float64)
        for name in ("mask", "sampler_logprobs", "old_logprobs", "trainer_logprobs")
    }
    flat["tokens"] = torch.tensor([token for row in rows for token in row["tokens"]])
    flat["advantages"] = torch.tensor([row["advantages"] for row in rows], dtype=torch.float64)
    flat["lengths"] = torch.tensor([len(row["tokens"]) for row in rows])
    flat["prompt_lengths"] = torch.tensor([row["prompt_length"] for row in rows])
    flat["groups"] = torch.tensor([int(row["group"][1:]) for row in rows])
    for ours, theirs in {
        "rewards": "reward",
        "batches": "batch",
        "updates": "update",
        "micro_batches": "micro_batch",
    }.items():
        flat[ours] = torch.tensor([row[theirs] for row in rows], dtype=torch.float64)
    save_file(flat, path, metadata={"posttrain": json.dumps({**header, "updates": updates})})
    return str(path)


def test_safetensors_say_the_same(tmp_path):
    lines = dump()
    ours = verify_dump(lines_of(tmp_path, lines))
    assert verify_dump(as_tensors(lines, tmp_path / "dump.safetensors")) == ours


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_lengths": torch.tensor([1])}, "'lengths' and 1 'prompt_lengths'"),
        ({"tokens": torch.zeros(2, 2)}, "tensor 'tokens' has rows"),
    ],
)
def test_safetensors_of_another_shape_are_one_line(change, words, tmp_path):
    path = tmp_path / "dump.safetensors"
    whole = {"tokens": torch.zeros(4), "mask": torch.ones(4), "lengths": torch.tensor([2, 2])}
    save_file({"prompt_lengths": torch.tensor([1, 1])} | whole | change, path, {"posttrain": json.dumps(HEADER)})
    with pytest.raises(DataError, match=words):
        verify_dump(str(path))


@pytest.mark.parametrize(("name", "item"), [("trainer_logprobs", "first update"), ("sampler_logprobs", "sampling")])
def test_a_column_that_was_not_filled_is_said(name, item, tmp_path):
    header, updates, rows = parts(dump())
    for row in rows:
        row[name] = [-1.0] * len(row[name])
    path = write(tmp_path / "dump.jsonl", [header, *updates, *rows])
    assert "as of a column that was not filled" in failed(verify_dump(str(path)))[item]


def test_a_folder_is_one_dump_a_file_a_batch(tmp_path):
    header, _, rows = parts(dump())
    for batch in range(2):  # of files that do not number their batches, and the same one twice in the third
        here = [{k: v for k, v in row.items() if k not in ("batch", "update")} for row in rows if row["batch"] == batch]
        lines_of(tmp_path, [header, *here], f"{batch + 9}.jsonl")
    assert failed(verify_dump(str(tmp_path))) == {}
    lines_of(tmp_path, [header, *here], "11.jsonl")
    assert "batch 2 has 48 of its 48 completions from batch 1" in failed(verify_dump(str(tmp_path)))["repeats"]


HEADER = {"format": "posttrain-rollouts-1"}
ROW = {"tokens": [5, 6, 7], "prompt_length": 1, "mask": [1, 1]}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([ROW], 'it is no header; expected {"format": "posttrain-rollouts-1", ...} first'),
        ([HEADER], "the dump has a header and no rows"),
        ([{**HEADER, "agregation": "token_mean"}, ROW], "did you mean 'aggregation'"),
        ([{**HEADER, "aggregation": "mean"}, ROW], "unknown aggregation 'mean'"),
        ([{**HEADER, "clip_low": -1}, ROW], "line 1: 'clip_low' must be 0 or more; got -1"),
        ([HEADER, {"tokens": [5, 6]}], "line 2: column 'prompt_length' is missing; this row has: tokens"),
        ([HEADER, {**ROW, "sampler_logprob": [0, 0]}], "did you mean 'sampler_logprobs'"),
        ([HEADER, {**ROW, "mask": [1]}], "'mask' has 1 values; expected 2 or 3, one for each token after the prompt"),
        ([HEADER, {**ROW, "old_logprobs": [-1, -1, -1]}], "'old_logprobs' has 3 values; expected 2"),
        ([HEADER, {**ROW, "old_logprobs": ["a", "b"]}], "'old_logprobs' must be a list of numbers"),
        ([HEADER, {**ROW, "prompt_length": 3}], "'prompt_length' is 3, of 3 tokens; expected a token or more after it"),
        ([HEADER, {**ROW, "tokens": [5, None, 7]}], "'tokens' must be whole numbers of 0 or more"),
        ([HEADER, {**ROW, "tokens": [5, 6.5, 7]}], "'tokens' must be whole numbers of 0 or more"),
        ([HEADER, {**ROW, "reward": 1}, ROW], "line 3: column 'reward' is missing, which dump.jsonl line 2 has"),
    ],
)
def test_what_is_no_dump_is_one_line(lines, words, tmp_path, capsys):
    assert main(["verify", "--import", lines_of(tmp_path, lines)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_files_that_cannot_be_read(tmp_path, capsys):
    torch.save({"samples": [Fraction(1)]}, tmp_path / "own.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "cut.safetensors").write_bytes(b"12345678")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "own.pt": "reading those runs code",
        "other.pt": "it has a",
        "cut.pt": "cannot read cut.pt",
        "cut.safetensors": "cannot read cut.safetensors",
        "empty": "is empty",
        "nowhere.jsonl": "there is no file or folder",
    }.items():
        assert main(["verify", "--import", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1, (name, said)
    assert main(["verify", "--import", "x.jsonl", "--model", "a"]) == 2
    assert "--import checks rollouts without a model; leave out --model" in capsys.readouterr().err
    assert main(["verify", "--import", "x.jsonl", "--trainers", "2"]) == 2
    assert "leave out --trainers" in capsys.readouterr().err


def test_a_dump_without_a_column_skips_what_needs_it(tmp_path, capsys):
    lines = [HEADER, *({k: row[k] for k in ("tokens", "prompt_length", "mask")} for row in parts(dump())[2])]
    assert main(["verify", "--import", lines_of(tmp_path, lines)]) == 0
    said = capsys.readouterr().out
    assert "skipped  advantages: not measured; the dump has not both 'reward' and 'advantages'" in said
    assert [line.split()[0] for line in said.splitlines()].count("skipped") == 6


def test_the_command_fails_where_an_item_does(tmp_path, capsys):
    path = lines_of(tmp_path, FAULTS["twice"].make())
    assert main(["verify", "--import", path, "--json"]) == 1
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["name"] for item in items if not item["passed"]] == ["repeats"]
    assert len(run(Verify(import_=path))) == len(items)


def slime(rows, **more):
    """What slime's debug dump has of these rows."""
    return [
        {
            "group_index": int(row["group"][1:]),
            "prompt": "p",
            "tokens": row["tokens"],
            "response_length": len(row["mask"]),
            "reward": row["reward"],
            "loss_mask": row["mask"],
            "rollout_log_probs": row["sampler_logprobs"],
            "status": "completed" if row["tokens"][-1] == 0 else "truncated",
            "metadata": {},
            **more,
        }
        for row in rows
    ]


def test_rollouts_of_slime(tmp_path):
    rows = parts(dump())[2]
    torch.save({"rollout_id": 0, "samples": slime(rows)}, tmp_path / "0.pt")
    items = {item.name: item for item in verify_dump(str(tmp_path / "0.pt"))}
    assert all(item.passed for item in items.values()) and items["truncated"].measured is not None
    columns = {
        "tokens": [torch.tensor(row["tokens"]) for row in rows],
        "response_lengths": [len(row["mask"]) for row in rows],
        "loss_masks": [torch.tensor(row["mask"]) for row in rows],
        "log_probs": [torch.tensor(row["old_logprobs"]) for row in rows],
        "rollout_log_probs": [torch.tensor(row["sampler_logprobs"]) for row in rows],
        "advantages": [torch.full((len(row["mask"]),), row["advantages"]) for row in rows],
        "raw_reward": [row["reward"] for row in rows],
        "truncated": [int(row["tokens"][-1] != 0) for row in rows],
    }
    torch.save({"rollout_id": 0, "rank": 0, "rollout_data": columns}, tmp_path / "1.pt")
    found = {item.name: item for item in verify_dump(str(tmp_path / "1.pt"))}
    assert all(item.passed for item in found.values()) and "GRPO" in found["advantages"].detail
    torch.save({"rollout_data": {**columns, "log_probs": columns["log_probs"][1:]}}, tmp_path / "ragged.pt")
    with pytest.raises(DataError, match=f"'log_probs' has {len(rows) - 1} rows, and 'tokens' {len(rows)}"):
        verify_dump(str(tmp_path / "ragged.pt"))
    for row in columns["rollout_log_probs"]:
        row += 0.05
    torch.save({"rollout_id": 0, "rank": 0, "rollout_data": columns}, tmp_path / "2.pt")
    assert "sampling" in failed(verify_dump(str(tmp_path / "2.pt")))


def padded(values, left=0, width=40, fill=0.0):
    return torch.tensor([[*[fill] * (left - 0), *v, *[fill] * (width - left - len(v))] for v in values])


def test_tensors_of_a_batch_of_verl(tmp_path):
    rows = parts(dump(batches=1))[2]
    said = [row["tokens"][row["prompt_length"] :] for row in rows]
    prompts = [row["tokens"][: row["prompt_length"]] for row in rows]
    real = padded([[1.0] * len(one) for one in said], width=24)
    batch = {
        "prompts": torch.tensor([[0, *prompt] for prompt in prompts]),
        "responses": padded(said, width=24).long(),
        "attention_mask": torch.cat([torch.tensor([[0, 1, 1, 1]] * len(rows)), real.long()], 1),
        "response_mask": real.long(),
        "old_log_probs": padded([row["old_logprobs"] for row in rows], width=24),
        "rollout_log_probs": padded([row["sampler_logprobs"] for row in rows], width=24),
        "advantages": padded([[row["advantages"]] * len(row["mask"]) for row in rows], width=24),
        "token_level_scores": padded([[row["reward"]] for row in rows], width=24),
        "uid": [row["group"] for row in rows],
    }
    torch.save(batch, tmp_path / "0.pt")
    assert failed(verify_dump(str(tmp_path / "0.pt"))) == {}
    for name, wrong, words in (
        ("advantages", batch["advantages"][:, 0], "'advantages' is no tensor of rows and tokens; it is of shape"),
        ("old_log_probs", batch["old_log_probs"][:-1], "'old_log_probs' has shape"),
        ("attention_mask", batch["attention_mask"].tolist(), "'attention_mask' is no tensor"),
    ):
        torch.save({**batch, name: wrong}, tmp_path / "ragged.pt")
        with pytest.raises(DataError, match=words):
            verify_dump(str(tmp_path / "ragged.pt"))
    (tmp_path / "ragged.pt").unlink()
    batch["response_mask"] = torch.ones_like(batch["response_mask"])
    torch.save(batch, tmp_path / "1.pt")
    assert "such as padding" in failed(verify_dump(str(tmp_path / "1.pt")))["loss mask"]


def test_text_of_verl(tmp_path):
    rows = [
        {"input": f"What is {n}?", "output": f"It is {n} {k}.", "gts": "1", "score": float(k == 0), "step": 1}
        for n in range(4)
        for k in range(3)
    ]
    for step in (1, 2):
        here = [{**row, "step": step, "output": row["output"] + " Yes." * step} for row in rows]
        lines_of(tmp_path, here, f"{step}.jsonl")
    assert failed(verify_dump(str(tmp_path))) == {}
    lines_of(tmp_path, [{**row, "score": 0.0, "output": row["output"] + " Yes."} for row in rows], "3.jsonl")
    found = failed(verify_dump(str(tmp_path)))
    assert "2 scores of one completion" in found["scores"] and "batch 2 has 12" in found["repeats"]
    with pytest.raises(DataError, match="score"):
        verify_dump(lines_of(tmp_path, [{**rows[0], "score": "high"}], "bad.jsonl"))
