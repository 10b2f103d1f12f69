"""Hand-counted accuracies from a scripted engine; one run with a real, random model."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from html import escape

import pytest

from posttrain.data import ChatFormat
from posttrain.engine.policy import load_policy
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.scored import ScoredEnvironment
from posttrain.errors import DataError, UserError, as_typed
from posttrain.recipes import evaluate as recipe
from posttrain.recipes.evaluate import Evaluate, run
from posttrain.rewards import parse_rewards
from posttrain.runs import read_run
from posttrain.statistics import mean_interval, paired_difference_interval, wilson_interval
from posttrain.training import checkpoint
from tests.data.families import of_family
from tests.recipes.folders import model_folder

RIGHT, WRONG = "####7", "####3"  # of every question
# what is said to each question, in order; "?" holds no answer, and the long one is cut off at 16 tokens
SCRIPT = {
    "a": [RIGHT, RIGHT, RIGHT, RIGHT],
    "b": [RIGHT, WRONG, WRONG, "?"],
    "c": [WRONG, WRONG, WRONG, WRONG],
    "d": [RIGHT, RIGHT, "? ? ? ? ? ? ? ? ?", WRONG],
}
GREEDY = {"a": RIGHT, "b": WRONG, "c": RIGHT, "d": WRONG}
CHAT = ChatFormat(of_family("smollm2"))


def scripted(said, greedy):
    """An engine that answers the n-th time it is asked a question with the n-th of its answers."""
    times = Counter()

    def script(request):
        question = CHAT.decode(request.token_ids).removesuffix("assistant\n").strip()[-1]
        if request.sampling.temperature == 0:
            text = greedy[question]
        else:
            text = said[question][times[question]]
            times[question] += 1
        return [*CHAT.tokenizer.encode(text), max(CHAT.stop_ids)]

    return ScriptedEngine(script, CHAT.stop_ids)


@pytest.fixture
def folder(tmp_path):
    return model_folder(tmp_path / "model")


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": q, "answer": "7", "id": q}) + "\n" for q in SCRIPT))
    return str(path)


@pytest.fixture
def engines(monkeypatch):
    """Policies with scripted engines, in the order in which they are loaded."""
    waiting = []

    def load(*args, **kwargs):
        return replace(load_policy(*args, **kwargs), engine=waiting.pop(0))

    monkeypatch.setattr(recipe, "load_policy", load)
    return waiting


def options(folder, tasks, **others):
    chosen = {"model": str(folder), "dataset": tasks, "reward": "numbers", "max_new_tokens": 16, "precision": "float32"}
    return Evaluate(**chosen | others)


def test_sampled_accuracy_by_hand(folder, tasks, engines, tmp_path):
    engines.append(scripted(SCRIPT, GREEDY))
    found = run(options(folder, tasks, samples=4), output=tmp_path / "run", quiet=True).summary()
    assert (found["accuracy"], found["n"], found["samples_per_task"]) == ((1 + 0.25 + 0 + 0.5) / 4, 4, 4)
    assert found["ci95"] == list(mean_interval([1.0, 0.25, 0.0, 0.5]))
    # of 4 samples with c right, a pair holds a right one with 1 - C(4-c, 2)/6: 1, 1/2, 0, 5/6
    assert found["pass_at"] == pytest.approx({"1": 0.4375, "2": (1 + 1 / 2 + 0 + 5 / 6) / 4, "4": 0.75})
    assert found["pass_at_ci95"]["2"] == pytest.approx(mean_interval([1, 1 / 2, 0, 5 / 6]))
    assert found["pass_at_ci95"]["4"] == pytest.approx(mean_interval([1.0, 1.0, 0.0, 1.0]))
    assert (found["unparsed"], found["truncated"]) == (2 / 16, 1 / 16)
    assert found["mean_tokens"] == (14 * 6 + 2 + 16) / 16
    assert found["decoding"] == "sampled" and "greedy" not in found


@pytest.mark.parametrize(
    "asked, said",
    [
        ({}, "a greedy answer (leave out `greedy`, and type `samples=8`) gives 1"),
        ({"greedy": True}, "a greedy answer"),
        ({"samples": 1}, "`samples` gives 1"),
    ],
)
def test_answers_that_a_reward_cannot_compare_are_refused_before_a_model_is_loaded(
    folder, tasks, tmp_path, asked, said
):
    (tmp_path / "vote.py").write_text(
        "from posttrain.rewards import reward_function\n\n"
        "@reward_function(min_group=2)\ndef vote(group):\n    return [1.0] * len(group.episodes)\n"
    )
    with pytest.raises(UserError, match=re.escape(f"compares 2 or more completions of a task; {said}")):
        run(options(folder, tasks, reward=f"{tmp_path / 'vote.py'}:vote", **asked), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_greedy_accuracy_by_hand(folder, tasks, engines, tmp_path):
    engines.append(scripted(SCRIPT, GREEDY))
    found = run(options(folder, tasks, greedy=True), output=tmp_path / "run", quiet=True).summary()
    assert (found["accuracy"], found["decoding"], found["samples_per_task"]) == (0.5, "greedy", 1)
    assert found["ci95"] == list(wilson_interval(2, 4))
    assert "sampled" not in found


def test_both_are_measured_unless_one_is_asked_for(folder, tasks, engines, tmp_path):
    assert list(Evaluate().decodings()) == ["sampled", "greedy"] == list(Evaluate(greedy=True, samples=3).decodings())
    assert Evaluate().decodings() == {"sampled": (8, 1.0), "greedy": (1, 0.0)}
    engines.append(scripted(SCRIPT, GREEDY))
    found = run(options(folder, tasks, greedy=True, samples=4), output=tmp_path / "run", quiet=True)
    summary = found.summary()
    assert summary["accuracy"] == summary["sampled"]["accuracy"] == 0.4375
    assert summary["greedy"]["accuracy"] == 0.5
    assert {name: answers.greedy for name, answers in found.model.answers.items()} == {"sampled": False, "greedy": True}
    title, head, sampled, greedy, *_, note = found.lines()[:6]
    assert title == f"Held-out tasks: {tasks}" and head.split()[:4] == ["model", "answers", "pass@1", "pass@k"]
    assert (
        "sampled  0.438 (" in sampled and " 0.750 (" in sampled and "greedy   0.500 (" in greedy and "4 tasks" in note
    )


def test_a_baseline_gets_the_same_tasks_and_the_difference_its_own_interval(folder, tasks, engines, tmp_path):
    engines += [scripted(SCRIPT, GREEDY), scripted({q: [WRONG] * 4 for q in SCRIPT}, dict.fromkeys(SCRIPT, RIGHT))]
    config = options(folder, tasks, samples=4, greedy=True, baseline=str(folder))
    found = run(config, output=tmp_path / "run", quiet=True)
    over = found.summary()["difference"]
    assert over["sampled"]["value"] == 0.4375 and over["greedy"]["value"] == -0.5
    assert over["sampled"]["ci95"] == list(paired_difference_interval([0.0] * 4, [1.0, 0.25, 0.0, 0.5]))
    assert over["greedy"]["ci95"] == list(paired_difference_interval([1.0] * 4, [1.0, 0.0, 1.0, 0.0]))
    assert found.summary()["baseline"]["greedy"]["accuracy"] == 1.0
    assert any(
        "sampled: not distinguishable from the baseline: +43.8 points of pass@1 on the same 4 tasks" in line
        for line in found.lines()
    )


def test_model_and_baseline_are_each_loaded_once_in_order(folder, tasks, tmp_path, monkeypatch):
    other = model_folder(tmp_path / "other", seed=1)
    loaded = []

    def load(name, **options):
        loaded.append(name)
        return replace(load_policy(name, **options), engine=scripted(SCRIPT, GREEDY))

    monkeypatch.setattr(recipe, "load_policy", load)
    run(options(folder, tasks, samples=4, baseline=str(other)), output=tmp_path / "run", quiet=True)
    assert loaded == [str(folder), str(other)]


def test_a_clear_difference_is_called_one(folder, tasks, engines, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": q, "answer": "7", "id": f"{q}{i}"}) + "\n" for i in range(8) for q in SCRIPT)
    )
    right, wrong = dict.fromkeys(SCRIPT, RIGHT), dict.fromkeys(SCRIPT, WRONG)
    for ours, theirs, word in ((right, wrong, "better than"), (wrong, right, "worse than")):
        engines += [scripted(SCRIPT, ours), scripted(SCRIPT, theirs)]
        config = options(folder, str(path), greedy=True, baseline=str(folder))
        found = run(config, output=tmp_path / word, quiet=True)
        assert any(f"greedy: {word} the baseline" in line for line in found.lines())


def test_the_run_directory_has_every_completion_and_a_report(folder, tasks, engines, tmp_path):
    engines += [scripted(SCRIPT, GREEDY), scripted(SCRIPT, GREEDY)]
    config = options(folder, tasks, samples=4, greedy=True, baseline=str(folder))
    found = run(config, output=tmp_path / "run", quiet=True)
    kept = read_run(tmp_path / "run")
    assert Counter(row["decoding"] for row in kept.samples) == {"sampled": 32, "greedy": 8}
    rows = [r for r in kept.samples if r["task"] == "b" and r["decoding"] == "sampled"][:4]
    assert [row["completion"] for row in rows] == SCRIPT["b"]
    assert [row["reward"] for row in rows] == [1, 0, 0, 0]
    assert [row["unparsed"] for row in rows] == [False, False, False, True]
    assert [row["tokens"] for row in rows] == [6, 6, 6, 2]
    assert kept.command == "evaluate" and kept.config["samples"] == 4
    assert kept.metrics[0]["sampled/accuracy"] == 0.4375 and kept.metrics[0]["baseline/greedy/accuracy"] == 0.5
    page = found.report.read_text()
    assert "43.8%" in page and "Held-out tasks" in page and "not distinguishable" in page
    json.dumps(found.summary())


def test_tasks_are_asked_in_parts_that_change_nothing(folder, tasks, engines, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "AT_A_TIME", 8)  # two tasks of four answers
    engines.append(scripted(SCRIPT, GREEDY))
    found = run(options(folder, tasks, samples=4), output=tmp_path / "run", quiet=True)
    assert found.summary()["accuracy"] == 0.4375 and found.summary()["n"] == 4
    assert len(read_run(tmp_path / "run").samples) == 16


def test_every_draw_has_its_own_seed_and_the_same_in_every_run(folder, tasks, engines, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "AT_A_TIME", 8)
    seeds = []
    for seed in (0, 0, 1):
        engine = scripted(SCRIPT, GREEDY)
        engines.append(engine)
        run(options(folder, tasks, samples=4, seed=seed), output=tmp_path / str(len(seeds)), quiet=True)
        seeds.append([request.seed for batch in engine.asked for request in batch])
    assert len(set(seeds[0])) == 16
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])


def test_a_real_model_end_to_end(folder, tmp_path):
    config = Evaluate(
        dataset="gym:chain_sum",
        model=str(folder),
        samples=2,
        limit=3,
        max_new_tokens=4,
        precision="float32",
        greedy=True,
        prompt_template="{prompt}=",
    )
    first, second = (run(config, output=tmp_path / name, quiet=True).summary() for name in ("one", "two"))
    assert first["n"] == 3 and first["sampled"]["mean_tokens"] <= 4
    for key in ("sampled", "greedy"):
        assert first[key] == second[key]


def test_what_a_run_was_trained_with_is_noted(folder, tasks, engines, tmp_path):
    trained = tmp_path / "rl-1"
    checkpoint.save(trained / "checkpoints", 3, lambda new: shutil.copytree(folder, new, dirs_exist_ok=True), {})
    (trained / "config.toml").write_text('system = "Think."\nprompt_template = "{prompt}"\n')
    engines.append(scripted(SCRIPT, GREEDY))
    found = run(options(trained, tasks, greedy=True), output=tmp_path / "run", quiet=True)
    assert found.model.model == f"{trained} (step-000003)"
    constant = "one fixed answer, '7', is right for 100.0% of the tasks"
    assert found.notes == (f"{trained} (step-000003) was trained with `system` 'Think.', not with None", constant)
    typed, _ = found.summary()["notes"]
    assert typed == as_typed(found.notes[0]) and f"note: {typed}" in found.lines()
    assert escape(found.notes[0]) in found._repr_html_()
    page = replace(found, notes=("<i>",), config=replace(found.config, dataset="<data>"))._repr_html_()
    assert "&lt;i&gt;" in page and "&lt;data&gt;" in page and "<i>" not in page
    assert "was trained with --system &#x27;Think.&#x27;, not with None" in found.report.read_text()


def test_tasks_that_were_trained_on_are_left_out(folder, tasks, engines, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "c", "answer": "7"}) + "\n")
    engines.append(scripted(SCRIPT, GREEDY))
    config = options(folder, tasks, samples=4, exclude=str(tmp_path / "train.jsonl"))
    found = run(config, output=tmp_path / "run", quiet=True)
    assert found.summary()["n"] == 3 and found.summary()["accuracy"] == pytest.approx(1.75 / 3)
    assert any("1 tasks were left out" in note for note in found.notes)


def long_tasks(tmp_path):
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": "a", "answer": "7", "id": "a"}, {"prompt": "x" * 250, "answer": "7", "id": "far too long"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_prompt_over_the_context_is_named(folder, tmp_path):
    with pytest.raises(UserError, match=r"'far too long' has \d+ tokens, but .* holds 256 .*`max_prompt_tokens=128`"):
        run(options(folder, long_tasks(tmp_path)), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_or_left_out_and_counted(folder, engines, tmp_path):
    engines.append(scripted(SCRIPT, GREEDY))
    config = options(folder, long_tasks(tmp_path), greedy=True, max_prompt_tokens=100)
    found = run(config, output=tmp_path / "run", quiet=True)
    assert found.summary()["n"] == 1
    assert found.notes == ("1 prompts over 100 tokens were left out",)


def test_a_task_that_one_of_two_models_cannot_hold_is_left_out_for_both(folder, engines, tmp_path):
    small = model_folder(tmp_path / "small", context=120)
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"prompt": q, "answer": "7", "id": q}) + "\n" for q in ("a", "a" * 40)))
    engines += [scripted(SCRIPT, GREEDY), scripted(SCRIPT, GREEDY)]
    config = options(small, str(path), greedy=True, baseline=str(folder), max_prompt_tokens=200)
    found = run(config, output=tmp_path / "run", quiet=True)
    assert found.summary()["n"] == found.summary()["baseline"]["greedy"]["n"] == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset": ""}, "`dataset`"),
        ({"reward": ""}, "`reward`"),
        ({"samples": 0}, "1 or more"),
        ({"temperature": 0.0}, "`greedy`"),
        ({"max_new_tokens": 0}, "1 or more"),
        ({"model": "./nowhere"}, "no model"),
        ({"baseline": "./nowhere"}, "no model"),
        ({"dataset": "nowhere.jsonl"}, "no file or folder"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(folder, tasks, tmp_path, wrong, message):
    with pytest.raises(UserError, match=message) as raised:
        run(options(folder, tasks, **wrong), output=tmp_path / "run", quiet=True)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_read_by_its_test_split(folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "test"):
        (data / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "answer": "1"}) + "\n")
    tasks, _ = recipe._tasks(recipe.asked(Evaluate(dataset=str(data)))[0], ScoredEnvironment(parse_rewards("tags")))
    assert [task.prompt[0].content for task in tasks] == ["test"]
    (data / "test.jsonl").unlink()
    with pytest.raises(DataError, match="`split`"):
        recipe._tasks(recipe.asked(Evaluate(dataset=str(data)))[0], ScoredEnvironment(parse_rewards("tags")))


def test_a_gym_source_gives_its_held_out_split():
    (asked,) = recipe.asked(Evaluate(dataset="gym:chain_sum", limit=2))
    tasks, _ = recipe._tasks(asked, ScoredEnvironment(parse_rewards("tags")))
    assert [task.id.split("/")[1] for task in tasks] == ["heldout", "heldout"]
