"""On-policy distillation through `posttrain rl`: a student comes near its teacher; some are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.opd import OPD
from posttrain.episodes.sampler import Sampler
from posttrain.errors import PosttrainError, UserError
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.runs import read_run
from posttrain.runs.inputs import InputsChanged
from posttrain.training import policy
from tests.recipes.folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("distillation")
    model_folder(where / "student")
    model_folder(where / "teacher", seed=1)
    for name, first in (("tasks", 0), ("heldout", 8)):
        rows = [{"prompt": f"{i}?", "answer": ""} for i in range(first, first + 8)]
        (where / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return where


def config(folder: Path, **changes: Any) -> RL:
    common = {"prompts_per_step": 4, "completions_per_prompt": 4, "steps": 2, "max_new_tokens": 8, "reward": "length"}
    common |= {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "teacher": str(folder / "teacher")}
    common |= {"eval_every": 10, "eval_dataset": str(folder / "heldout.jsonl")}
    common |= {"dataset": str(folder / "tasks.jsonl"), "model": str(folder / "student")}
    return RL(algorithm="opd", **(common | changes))


MANY = {"prompts_per_step": 8, "completions_per_prompt": 8, "eval_every": 20}  # a sampled token's KL is a noisy one


def rows(run: Path) -> list[dict[str, Any]]:
    return read_run(run).metrics


def test_a_student_comes_near_its_teacher_on_prompts_that_it_did_not_train_on(folder, tmp_path):
    found = rows(rl.run(config(folder, steps=60, **MANY), OPD(), output=tmp_path / "run", quiet=True).run)
    heldout = [row["evaluation/teacher_kl"] for row in found if "evaluation/teacher_kl" in row]
    assert len(heldout) == 4 and heldout[-1] < 0.6 * heldout[0]
    trained = [row["groups/teacher_kl"] for row in found if "groups/teacher_kl" in row]
    assert trained[0] > 0.5 and sum(trained[-3:]) / 3 < 0.5 * trained[0]


def test_whole_distributions_bring_a_student_nearer_with_fewer_samples(folder, tmp_path):
    options = replace(config(folder, steps=30, **MANY | {"eval_every": 30}), algorithm="gkd")  # half of opd's
    found = rows(rl.run(options, GKD(top_k=16), output=tmp_path / "run", quiet=True).run)
    heldout = [row["evaluation/teacher_kl"] for row in found if "evaluation/teacher_kl" in row]
    assert len(heldout) == 2 and heldout[1] < 0.6 * heldout[0]
    trained = [row["divergence"] for row in found if "divergence" in row]
    assert len(trained) == 30 and trained[-1] < 0.6 * trained[0]


def test_a_policy_learns_from_the_better_completion_of_a_group(folder, tmp_path):
    prompt = "{prompt} {better} {feedback}"
    options = config(folder, teacher="policy", teacher_prompt=prompt, eval_every=0, eval_dataset="")
    options = replace(options, algorithm="gkd", reward="length?limit=4&buffer=4")
    found = rows(rl.run(options, GKD(), output=tmp_path / "run", quiet=True).run)
    assert all(row["divergence"] > 0 and row["grad_norm"] > 0 for row in found)


def test_a_teacher_that_is_the_policy_teaches_nothing_at_first(folder, tmp_path):
    options = config(folder, teacher=str(folder / "student"), steps=1, eval_every=1, temperature=0.7)
    first = rows(rl.run(options, OPD(), output=tmp_path / "run", quiet=True).run)
    assert first[0]["evaluation/teacher_kl"] == pytest.approx(0.0, abs=1e-4)
    assert first[1]["groups/teacher_kl"] == pytest.approx(0.0, abs=1e-5)  # at the temperature of the sampling
    assert first[1]["grad_norm"] < 1e-4


def test_a_run_may_teach_and_an_adapter_may_learn(folder, tmp_path):
    pytest.importorskip("peft")
    taught = rl.run(config(folder), OPD(), output=tmp_path / "teacher", quiet=True).run
    options = config(folder, teacher=str(taught), lora_rank=2)
    done = rl.run(options, OPD(), output=tmp_path / "student", quiet=True)
    assert done.steps == 2 and rows(done.run)[-1]["groups/teacher_kl"] != 0


def test_a_resumed_run_refuses_another_teacher(folder, tmp_path):
    teacher = model_folder(tmp_path / "teacher", seed=1)
    options = config(folder, teacher=str(teacher), eval_every=0, eval_dataset="")
    run = rl.run(options, OPD(), output=tmp_path / "run", quiet=True).run
    assert "teacher" in read_run(run).environment["inputs"]
    model_folder(teacher, seed=2)
    with pytest.raises(InputsChanged, match="what `teacher` reads changed"):
        rl.run(replace(options, steps=3), OPD(), resume=run, quiet=True)


def other_words(folder: Path) -> None:
    """Two tokens change places."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))


def test_a_teacher_that_cannot_be_compared_is_refused_before_anything_is_sampled(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Sampler, "roll_out", lambda *a, **k: pytest.fail("sampled"))
    other = model_folder(tmp_path / "other", seed=1)
    other_words(other)
    shorter = model_folder(tmp_path / "shorter", seed=1, context=64)
    for teacher, what in (
        (
            other,
            r"another tokenizer than the policy: 2 of \d+ tokens differ, such as 'a' \(\d+ in the policy's, \d+ in",
        ),
        (shorter, r"reads 64 tokens at most, and a prompt with its completion may have 256"),
    ):
        options = config(folder, teacher=str(teacher))
        with pytest.raises(UserError, match=what):
            rl.run(options, OPD(), output=tmp_path / "refused", quiet=True)
        with pytest.raises(UserError, match=what):
            rl.dry_run(options, OPD(), measure=False)
    assert not (tmp_path / "refused").exists()
    with pytest.raises(UserError, match=r"no model"):
        rl.run(config(folder, teacher=str(tmp_path / "nowhere")), OPD(), output=tmp_path / "refused", quiet=True)


def test_a_plan_counts_the_teacher(folder):
    plan = rl.dry_run(config(folder), OPD(), measure=False)
    held = plan.training.held()
    assert held["teacher"] == plan.training.shape.parameters * 4 and plan.training.reads == 1
    assert plan.training.passes == 1.0


NAMED = "math={0}/teacher code={0}/other"
SOLVED = "{prompt} The solution is: {answer}. {kind}"


@pytest.fixture(scope="module")
def two(folder: Path) -> Path:
    """Rows that name a teacher each, in turn, with braces in the data."""
    model_folder(folder / "other", seed=2)
    rows = [
        {"prompt": f"{i}?", "answer": f"{i} {{kind}}", "kind": "k", "teacher": ("math", "code")[i % 2]}
        for i in range(8)
    ]
    (folder / "named.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def taught(folder: Path, monkeypatch: pytest.MonkeyPatch, run: Path, **changes: Any) -> tuple[list[Any], list[float]]:
    """The groups of the only step, and what the algorithm was told of their tokens."""
    told, make = [], policy.columns_of

    def watched(inputs: Any, groups: Any, context: Any, *, samples: bool) -> Any:
        found = make(inputs, groups, context, samples=samples)
        told.append((groups, found["teacher_N"].tolist()))
        return found

    monkeypatch.setattr(policy, "columns_of", watched)
    options = config(folder, dataset=str(folder / "named.jsonl"), steps=1, eval_every=0, eval_dataset="", **changes)
    rl.run(options, OPD(), output=run, quiet=True)
    return told[0]


def read_alone(model: Path, prompt: str, said: Any) -> list[float]:
    """The logprobs of sampled tokens behind a prompt, by an ordinary forward pass of transformers."""
    network = AutoModelForCausalLM.from_pretrained(str(model))
    words = [{"role": "user", "content": prompt}]
    shown = AutoTokenizer.from_pretrained(str(model)).apply_chat_template(words, add_generation_prompt=True)
    shown = list(shown if isinstance(shown, list) else shown["input_ids"])
    with torch.no_grad():
        logits = network(torch.tensor([[*shown, *said]])).logits[0, len(shown) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(said)), torch.tensor(said)].tolist()


def test_each_of_two_teachers_reads_the_rows_that_name_it(two, tmp_path, monkeypatch):
    groups, told = taught(two, monkeypatch, tmp_path / "run", teacher=NAMED.format(two))
    expected = [
        value
        for group in groups
        for row in group.rows
        for value in read_alone(
            two / {"math": "teacher", "code": "other"}[group.task.metadata["teacher"]],
            group.task.prompt[-1].content,
            row.trajectory.turns[0].token_ids,
        )
    ]
    assert {group.task.metadata["teacher"] for group in groups} == {"math", "code"}
    assert told == pytest.approx(expected, abs=1e-4)
    inputs = read_run(tmp_path / "run").environment["inputs"]["teacher"]
    assert inputs.count("sha256:") == 2 and len(set(inputs.split())) == 2


@pytest.mark.parametrize("teacher", ["policy", "teacher"])
def test_a_teacher_that_is_shown_the_solution_reads_the_same_tokens_behind_another_prompt(
    two, tmp_path, monkeypatch, teacher
):
    typed = teacher if teacher == "policy" else str(two / teacher)
    groups, told = taught(two, monkeypatch, tmp_path / "run", teacher=typed, teacher_prompt=SOLVED)
    expected = [
        value
        for group in groups
        for row in group.rows
        for value in read_alone(
            two / ("student" if teacher == "policy" else teacher),
            f"{group.task.prompt[-1].content} The solution is: {group.task.answer}. k",
            row.trajectory.turns[0].token_ids,
        )
    ]
    assert told == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": "math=x/teacher"}, "names the teacher 'code' in its column 'teacher'; expected .*: math"),
        ({"teacher": "math=x/teacher math=x/other"}, "the teacher 'math' is given twice"),
        ({"teacher": "math=x/teacher x/other"}, "has no name; of several, each is NAME=MODEL"),
        ({"teacher": "a=x/teacher", "dataset": "x/tasks.jsonl"}, "names no teacher in its column 'teacher'"),
        ({"teacher": "policy"}, "a teacher that is the policy has to see more"),
        ({"teacher": "", "teacher_prompt": "{prompt}"}, "`teacher`"),
        ({"teacher": "policy", "teacher_prompt": "Solve it"}, r"`teacher_prompt` needs \{prompt\}"),
        ({"teacher": "policy", "teacher_prompt": "{prompt} {solution}"}, "has no 'solution', which `teacher_prompt`"),
        ({"teacher": "policy", "teacher_prompt": "{prompt}" + " long" * 99}, "tokens as `teacher_prompt` shows it"),
    ],
)
def test_teachers_that_cannot_teach_a_row_are_refused_before_weights_are_read(
    two, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(
        "posttrain.bindings.backend.trained_policy", lambda *_, **__: pytest.fail("weights were loaded")
    )
    given = {name: value.replace("x/", f"{two}/") for name, value in changes.items()}
    options = config(two, **({"dataset": str(two / "named.jsonl"), "eval_every": 0, "eval_dataset": ""} | given))
    for run in (
        lambda: rl.run(options, OPD(), output=tmp_path / "refused", quiet=True),
        lambda: rl.dry_run(options, OPD(), measure=False),
    ):
        with pytest.raises(PosttrainError, match=message):
            run()
