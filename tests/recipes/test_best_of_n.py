"""The best of several answers: which are kept, what is told of choosing, and that sft reads what is written."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.bindings import backend
from posttrain.bindings.backend import trained_policy
from posttrain.cli import main
from posttrain.data import ChatFormat, load_preferences
from posttrain.data.tasks import load_demonstrations
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import RewardError, UserError
from posttrain.recipes import best_of_n as recipe
from posttrain.recipes.best_of_n import BestOfN, run
from posttrain.types import Message
from tests.data.families import of_family

CHAT = ChatFormat(of_family("smollm2"))
STOP = max(CHAT.stop_ids)
SAID = {  # of each prompt four answers; what begins with ... is cut off
    "1?": ["mz", "ab", "zz", "ab"],
    "2?": ["zzz", "...aaa", "zzz", "zz"],
    "3?": ["a", "az", "zzz", "z"],
}


@pytest.fixture
def engine():
    """Answers each prompt by what is said of it, in turn."""
    turns = {question: iter(said * 9) for question, said in SAID.items()}

    def answer(request):
        asked = CHAT.decode(request.token_ids)
        text = next(turns[next(question for question in SAID if question in asked)])
        return [*CHAT.tokenizer.encode(text.removeprefix("...")), *([] if text.startswith("...") else [STOP])]

    return ScriptedEngine(answer, CHAT.stop_ids, logprob=-0.5)


@pytest.fixture
def config(folder, engine, tmp_path, monkeypatch):
    """Four answers to each of three prompts; the reward is the share of early letters, gold how many letters."""
    monkeypatch.setattr(backend, "trained_policy", lambda *a, **k: replace(trained_policy(*a, **k), engine=engine))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in SAID))
    (tmp_path / "gold.py").write_text("def letters(completion): return float(len(completion))\n")
    return BestOfN(
        model=str(folder / "model"),
        dataset=str(tmp_path / "prompts.jsonl"),
        reward=f"{folder / 'scorer.py'}:score",
        completions_per_prompt=4,
        max_new_tokens=20,
        output=str(tmp_path / "best.jsonl"),
    )


def written(config):
    return [json.loads(line) for line in Path(config.output).read_text(encoding="utf-8").splitlines()]


def kept(config):
    """What is written: of each prompt the answers and what they earned."""
    found = {}
    for row in written(config):
        said = row["messages"]
        assert [m["role"] for m in said] == ["user", "assistant"]
        found.setdefault(said[0]["content"], []).append((said[1]["content"], row["reward"]))
    return found


def test_the_best_answer_of_each_prompt_is_kept_and_sft_reads_it(config):
    found = run(config, quiet=True)
    assert kept(config) == {"1?": [("ab", 1.0)], "2?": [("zzz", 0.0)], "3?": [("a", 1.0)]}  # of equal ones the first
    assert (found.prompts, found.kept, found.without, found.cut_off) == (3, 3, 0, 1)
    assert load_demonstrations(config.output)[0] == (Message("user", "1?"), Message("assistant", "ab"))
    row = written(config)[0]
    assert row["scores"] == {"score": 1.0} and row["id"]


def test_several_are_kept_if_they_say_something_else_and_earned_enough(config):
    run(replace(config, keep=3), quiet=True)
    assert kept(config) == {
        "1?": [("ab", 1.0), ("mz", 0.5), ("zz", 0.0)],
        "2?": [("zzz", 0.0), ("zz", 0.0)],
        "3?": [("a", 1.0), ("az", 0.5), ("zzz", 0.0)],
    }
    good = replace(config, keep=3, at_least=1.0, output=config.output.replace("best", "good"))
    found = run(good, quiet=True)
    assert kept(good) == {"1?": [("ab", 1.0)], "3?": [("a", 1.0)]}
    assert (found.kept, found.without) == (2, 1)
    assert "2 answers to 2 of 3 prompts" in found.lines()[-1] and "1 answers were truncated" in found.lines()[-1]


def test_prompts_with_an_answer_that_no_reward_applies_to_are_left_out_and_counted(config, tmp_path):
    (tmp_path / "some.py").write_text(
        "def known(prompts, completions): return [None if p == '2?' else 1 for p in prompts]\n"
    )
    found = run(replace(config, reward=f"{tmp_path}/some.py:known"), quiet=True)
    assert set(kept(config)) == {"1?", "3?"}
    assert (found.prompts, found.kept) == (3, 2)
    assert found.notes[-1] == "1 of 3 prompts were left out: no reward applies to one of their answers"
    (tmp_path / "none.py").write_text("def never(completions): return [None] * len(completions)\n")
    with pytest.raises(RewardError, match="no reward applies to all completions of any of the 3 prompts"):
        run(replace(config, reward=f"{tmp_path}/none.py:never", output=str(tmp_path / "n.jsonl")), quiet=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"at_least": 2.0}, "note: no answer that ended earned --at-least 2; the most was 1"),
        ({"max_new_tokens": 1}, "note: every answer was truncated at --max-new-tokens 1; raise it"),
    ],
)
def test_where_nothing_is_kept_no_file_is_written_and_the_reason_is_told(config, options, why):
    found = run(replace(config, **options), quiet=True)
    assert (found.kept, found.without) == (0, 3) and not Path(config.output).exists()
    assert found.lines()[0] == why
    assert found.lines()[-1].startswith(f"no answer to any of 3 prompts was kept, so {config.output} is not written")
    assert not list(Path(config.output).parent.glob("*.part"))  # the same command begins anew


def test_where_nothing_is_kept_the_exit_code_is_1(config, capsys):
    words = ["--dataset", config.dataset, "--model", config.model, "--reward", config.reward, "--output", config.output]
    small = ["--completions-per-prompt", "2", "--max-new-tokens", "20", "--precision", "float32", "--quiet", "--json"]
    assert main(["best-of-n", *words, *small, "--at-least", "2"]) == 1
    assert json.loads(capsys.readouterr().out)["kept"] == 0
    assert main(["best-of-n", *words, *small]) == 0


def test_what_the_best_of_fewer_earns_is_told_with_gold_beside(config, tmp_path):
    found = run(replace(config, gold=f"{tmp_path / 'gold.py'}:letters"), quiet=True)
    one, two, four = found.earned
    assert [row.n for row in found.earned] == [1, 2, 4]
    assert [row.kl for row in found.earned] == pytest.approx([0, math.log(2) - 1 / 2, math.log(4) - 3 / 4])
    # rewards (1/2 1 0 1), (0 1 0 0) and (1 1/2 0 0); letters (2 2 2 2), (3 3 3 2) and (1 2 3 1)
    assert one.reward == pytest.approx((5 / 8 + 1 / 4 + 3 / 8) / 3)
    assert one.gold == pytest.approx((8 / 4 + 11 / 4 + 7 / 4) / 3)
    # the best of the six pairs of each: five times 1 and once 1/2; never, for the 1 is cut off; three times 1 and twice
    # 1/2
    assert two.reward == pytest.approx((5.5 / 6 + 0 + 4 / 6) / 3)
    # gold of those that the reward chooses: of the second prompt by chance one of three that are not cut off
    assert (four.reward, four.gold) == pytest.approx((2 / 3, (2 + (3 + 3 + 2) / 3 + 1) / 3))
    assert found.summary()["earned"][2]["reward"] == pytest.approx(2 / 3)
    assert "gold" in found.lines()[1] and len(found.lines()) == 6


def test_the_most_is_told_where_it_is_no_power_of_two(config):
    found = run(replace(config, completions_per_prompt=3), quiet=True)
    assert [row.n for row in found.earned] == [1, 2, 3]


def test_prompts_are_sampled_a_few_at_a_time_each_by_draws_of_its_own(config, engine, monkeypatch):
    monkeypatch.setattr(recipe, "TOGETHER", 2)
    assert run(config, quiet=True).prompts == 3
    assert list(kept(config)) == list(SAID)
    seeds = [request.seed for batch in engine.asked for request in batch]
    assert len(seeds) == len(set(seeds)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": ""}, "an output file is required: `output=NAME.jsonl`"),
        ({"output": "nowhere/best.jsonl"}, "there is no folder nowhere"),
        ({"keep": 0}, "`keep` must be 1 or more"),
        ({"completions_per_prompt": 0}, "`completions_per_prompt` must be 1 or more"),
        ({"at_least": math.nan}, "`at_least` must be a finite number"),
        ({"temperature": 0.0}, "`temperature` must be above 0"),
        ({"dataset": ""}, "`dataset` is required"),
        ({"reward": ""}, "`reward` is required"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(config, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(replace(config, **options), quiet=True)
    assert not list(tmp_path.glob("*best*"))


def test_a_file_that_is_there_is_not_lost(config, tmp_path):
    (tmp_path / "best.jsonl").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        run(config, quiet=True)
    assert (tmp_path / "best.jsonl").read_text() == "mine"


def test_as_a_user_types_it(config, capsys):
    words = ["best-of-n", "--model", config.model, "--dataset", config.dataset, "--reward", config.reward]
    assert main([*words, "--completions-per-prompt", "2", "--output", config.output]) == 0
    out, err = capsys.readouterr()
    assert "what the best of n earns" in out and "3 answers to 3 of 3 prompts" in out and "best-of-n 3/3" in err
    assert main([*words, "--output", config.output.replace("best", "more"), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prompts"] == 3


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def gold(config, tmp_path, body):
    (tmp_path / "truth.py").write_text(f"def truth(completion): return float({body})\n")
    return replace(config, gold=f"{tmp_path / 'truth.py'}:truth", adversarial_pairs=str(tmp_path / "fooled.jsonl"))


def test_what_fools_the_reward_becomes_pairs_that_a_reward_model_learns_from(config, tmp_path):
    found = run(gold(config, tmp_path, "len(completion)"), quiet=True)
    # rewards: mz 1/2, ab 1, zz 0; zzz 0, zz 0; a 1, az 1/2, zzz 0, z 0. Gold is how many letters there are
    (row,) = lines(tmp_path / "fooled.jsonl")
    assert (row["chosen"], row["rejected"]) == ("zzz", "a")
    assert row["prompt"] == [{"role": "user", "content": "3?"}]
    assert (row["reward"], row["gold"]) == ({"chosen": 0.0, "rejected": 1.0}, {"chosen": 3.0, "rejected": 1.0})
    (pair,) = load_preferences(str(tmp_path / "fooled.jsonl")).items
    assert (pair.chosen, pair.rejected) == ("zzz", "a")
    assert (
        found.adversarial_pairs == 1 and "1 adversarial pairs" in found.lines()[-1] and found.annotation_items is None
    )


def test_what_was_cut_off_fools_nobody(config, tmp_path):
    # gold likes what begins with "aaa" best, which was cut off, and the reward would like it best as well
    found = run(gold(config, tmp_path, "completion.startswith('aaa')"), quiet=True)
    assert found.adversarial_pairs == 0 and lines(tmp_path / "fooled.jsonl") == []


def test_equal_rewards_fool_nobody(config, tmp_path):
    run(gold(config, tmp_path, "completion == 'zz'"), quiet=True)
    assert [row["id"] for row in lines(tmp_path / "fooled.jsonl")] == [
        written(config)[0]["id"]
    ]  # not of 2?, where all earn 0


def test_people_are_asked_about_what_the_reward_likes_best(config, tmp_path):
    asked = tmp_path / "items.jsonl"
    found = run(replace(config, annotation_items=str(asked)), quiet=True)
    rows = {row["prompt"][0]["content"]: row for row in lines(asked)}
    first = {question: [one["text"] for one in row["completions"]] for question, row in rows.items()}
    assert first["1?"][0] == "ab" and first["1?"][1] in ("mz", "zz") and first["2?"] == ["zzz", "zz"]
    assert first["3?"][0] == "a" and found.annotation_items == 3
    assert rows["2?"]["priority"] == 0 and rows["3?"]["priority"] == 1 - rows["3?"]["completions"][1]["reward"]
    again = tmp_path / "again.jsonl"
    run(replace(config, annotation_items=str(again), output=str(tmp_path / "second.jsonl")), quiet=True)
    assert lines(again) == lines(asked)


def test_nobody_is_asked_where_all_answers_say_the_same(config, tmp_path):
    asked = tmp_path / "items.jsonl"
    run(replace(config, annotation_items=str(asked), completions_per_prompt=3), quiet=True)
    assert [row["prompt"][0]["content"] for row in lines(asked)] == ["1?", "3?"]  # of 2? one was cut off


def test_steps_are_labelled_of_all_answers_that_ended(config, tmp_path, capsys):
    labelled = replace(config, step_labels=str(tmp_path / "steps.jsonl"), label_by="rule")
    found = run(labelled, quiet=True)
    rows = lines(tmp_path / "steps.jsonl")
    assert found.step_labels == len(rows) == 11 and "11 completions with labelled steps" in found.lines()
    assert [(row["steps"], row["labels"]) for row in rows[:2]] == [(["mz"], [False]), (["ab"], [True])]
    one = replace(labelled, output=str(tmp_path / "o.jsonl"), step_labels=str(tmp_path / "p.jsonl"), label_per_prompt=1)
    assert run(one, quiet=True).step_labels == 3
    sampled = replace(one, output=str(tmp_path / "s.jsonl"), step_labels=str(tmp_path / "t.jsonl"), label_by="hard")
    run(replace(sampled, continuations=1), quiet=True)
    assert all(row["labels"] in ([0.0], [1.0]) for row in lines(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_by": "hard"}, "`label_by` needs labels of steps: pass `step_labels` too"),
        ({"step_labels": "s.jsonl", "output": "s.jsonl"}, "different files"),
        ({"step_labels": "s.jsonl", "reward": "length"}, "`step_labels` needs a `reward` that says what is right"),
    ],
)
def test_labels_that_cannot_be_made_are_refused_before_sampling(
    config, engine, changes, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        run(replace(config, **changes), quiet=True)
    assert not engine.asked


def test_labels_go_on_where_they_were_interrupted(config, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe, "TOGETHER", 1)
    told = replace(config, step_labels=str(tmp_path / "steps.jsonl"), label_by="rule")
    right = recipe.step_rows
    calls: list[int] = []

    def stop(*args, **options):
        calls.append(len(calls))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return right(*args, **options)

    monkeypatch.setattr(recipe, "step_rows", stop)
    with pytest.raises(KeyboardInterrupt):
        run(told, quiet=True)
    with pytest.raises(UserError, match="with other label_by; remove it"):
        run(replace(told, label_by="soft"), quiet=True)
    assert run(told, quiet=True).step_labels == len(lines(tmp_path / "steps.jsonl")) == 11


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adversarial_pairs": "x.jsonl"}, "needs a gold reward"),
        ({"annotation_items": "x.txt"}, "`annotation_items=NAME.jsonl`"),
        ({"annotation_items": "best.jsonl", "output": "best.jsonl"}, "different files"),
    ],
)
def test_files_that_cannot_be(config, changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        run(replace(config, **changes), quiet=True)


def test_what_was_interrupted_goes_on_and_writes_the_same(config, engine, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe, "TOGETHER", 1)
    told = replace(config, gold=f"{tmp_path / 'gold.py'}:letters", adversarial_pairs=str(tmp_path / "fooled.jsonl"))
    other = replace(told, output=str(tmp_path / "whole.jsonl"), adversarial_pairs=str(tmp_path / "whole-fooled.jsonl"))
    whole = run(other, quiet=True)

    asked: list[int] = []
    right = recipe.sample_groups

    def sample(*args, **options):
        asked.append(len(asked))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return right(*args, **options)

    monkeypatch.setattr(recipe, "sample_groups", sample)
    with pytest.raises(KeyboardInterrupt):
        run(told, quiet=True)
    part = Path(f"{told.output}.part")
    assert part.exists() and not Path(told.output).exists()
    with pytest.raises(UserError, match="with other completions_per_prompt; remove it"):
        run(replace(told, completions_per_prompt=3), quiet=True)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "1?"}) + "\n")
    with pytest.raises(UserError, match="with other prompts; remove it"):
        run(told, quiet=True)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in SAID))
    scorer = Path(told.reward.partition(":")[0])
    code = scorer.read_text()
    scorer.write_text(code + "\n# another one\n")
    with pytest.raises(UserError, match="with other files; remove it"):
        run(told, quiet=True)
    scorer.write_text(code)
    found = run(told, quiet=True)
    assert len(asked) == 4  # two before, one that was interrupted, and that one again
    assert "2 of 3 prompts were done before" in found.notes and not part.exists()
    assert written(told) == written(other)
    assert Path(told.adversarial_pairs).read_bytes() == Path(other.adversarial_pairs).read_bytes() != b""
    assert (found.earned, found.cut_off, found.adversarial_pairs) == (
        whole.earned,
        whole.cut_off,
        whole.adversarial_pairs,
    )


def test_pairs_are_of_the_best_and_the_worst_that_ended(config, tmp_path):
    """Of "2?" all answers that ended earn the same, so it has no pair; of "1?" the best is at 1, of "3?" too."""
    pairs = tmp_path / "pairs.jsonl"
    found = run(replace(config, pairs=str(pairs)), quiet=True)
    rows = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
    said = {row["prompt"][0]["content"]: (row["chosen"], row["rejected"], row["reward"]) for row in rows}
    assert said == {
        "1?": ("ab", "zz", {"chosen": 1.0, "rejected": 0.0}),
        "3?": ("a", "zzz", {"chosen": 1.0, "rejected": 0.0}),
    }
    assert found.pairs == 2 and "2 pairs" in found.lines()[-1] and found.summary()["pairs"] == 2
    assert len(load_preferences(str(pairs))) == 2


def test_pairs_are_left_out_whose_best_is_not_good_enough(config, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    found = run(replace(config, pairs=str(pairs), at_least=1.5), quiet=True)
    assert (found.pairs, found.kept, pairs.read_text()) == (0, 0, "")
