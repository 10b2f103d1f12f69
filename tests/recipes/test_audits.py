"""The four commands that audit rewards, judges and policies, on files."""

import json
import re

import pytest

from posttrain.cli import main
from posttrain.errors import DataError, UserError
from posttrain.options.audits import Arena, AuditJudge, AuditReward, CompareRewards
from posttrain.recipes import arena, audit_reward, compare_rewards
from posttrain.recipes.evaluate_reward import audit as audit_judge
from posttrain.types import Message, Reply, StopReason, Usage
from tests.fake_openai import fake_openai
from tests.recipes.folders import model_folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tasks.jsonl", [{"prompt": f"{n} + 2?", "answer": str(n + 2)} for n in (5, 30, 1200)])
    (tmp_path / "mine.py").write_text(
        "def contains(completion, answer):\n    return float(answer in completion)\n\n"
        "def length(completion):\n    return len(completion) / 1000\n\n"
        "def judged(completion):\n    return float('good' in completion)\n"
    )


def test_audit_reward_is_a_check_for_ci(capsys, tmp_path):
    assert main(["audit-reward", "--dataset", "tasks.jsonl", "--reward", "numbers", "--quiet"]) == 0
    assert "passed" in capsys.readouterr().out
    typed = ["audit-reward", "--dataset", "tasks.jsonl", "--reward", "mine.py:contains", "--quiet"]
    assert main([*typed, "--json", "--output", "texts.jsonl"]) == 1
    found = json.loads(capsys.readouterr().out)
    # of 45 ways to write an answer in a place, 1,202 in the six places is not 1202
    assert not found["passed"] and found["tpr"] == pytest.approx(39 / 45) and 0 < found["fpr"] < 1
    assert found["j"] == pytest.approx(found["tpr"] - found["fpr"])
    listed = next(one for one in found["findings"] if one["attack"] == "all answers listed")
    assert (listed["paid"], listed["mean"]) == (1.0, 1.0)
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert len(rows) == found["n"] and rows[0]["task"] == "tasks.jsonl:1"
    assert main(typed) == 1
    said = capsys.readouterr().out
    assert "paid though wrong" in said and "failed: " in said and "J = TPR - FPR" in said
    assert main([*typed, "--max-paid", "1", "--max-refused", "1"]) == 0


def test_audit_reward_refuses_what_it_cannot_audit():
    with pytest.raises(UserError, match="`dataset` is required"):
        audit_reward.run(AuditReward(reward="numbers"))
    with pytest.raises(UserError, match="`reward` is required"):
        audit_reward.run(AuditReward("tasks.jsonl"))
    with pytest.raises(UserError, match="'majority' compares the completions of a task"):
        audit_reward.run(AuditReward("tasks.jsonl", "majority"), quiet=True)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("audit-reward", "--dataset tasks.jsonl"),
        ("audit-judge", "--dataset pairs.jsonl"),
        ("compare-rewards", "--samples samples.jsonl"),
    ],
)
def test_a_budget_that_is_used_up_is_no_finding_and_its_replies_are_kept(command, options, tmp_path, capsys):
    pytest.importorskip("openai")
    write(tmp_path / "samples.jsonl", SAMPLES)
    write(tmp_path / "pairs.jsonl", PAIRS[:2])
    with fake_openai(answer=lambda body: "Score: 2") as server:
        words = [command, *options.split(), "--judge", f"a={server.url}", "--quiet"]
        assert main([*words, "--judge-budget", "6"]) == 1
        assert "the budget of judges, 6 requests, is used up" in capsys.readouterr().err
        assert len(server.asked) == 6 and (tmp_path / f"{command}.judge-cache.jsonl").is_file()
        main(words)  # which fails, since the judge says one thing
        assert len(server.asked) == len({json.dumps(asked, default=str) for asked in server.asked}) > 6
    assert not list(tmp_path.glob("*cache*")) and "error" not in capsys.readouterr().err


SAMPLES = [
    {"prompt": p, "completion": c, "answer": a, "rewards": {"numbers": float(r)}, "right": r}
    for p, c, a, r in (
        ("1+1?", "#### 2", "2", 1),
        ("1+1?", "#### 3 and much more", "2", 0),
        ("2+2?", "#### 4, or so it seems", "4", 0),
        ("2+2?", "#### 4", "4", 1),
    )
]


def test_rewards_are_compared_on_the_same_samples(tmp_path, capsys):
    write(tmp_path / "samples.jsonl", SAMPLES)
    typed = ["compare-rewards", "--samples", "samples.jsonl", "--reward", "numbers mine.py:length", "--quiet"]
    assert main([*typed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    numbers, length = found["rewards"]
    assert (numbers["reward"], numbers["auc"], numbers["best_of_n"], numbers["fooled_by"]) == ("numbers", 1.0, 1.0, [])
    assert (length["reward"], length["auc"], length["best_of_n"]) == ("length", 0.0, 0.0)
    assert "very long" in length["fooled_by"] and numbers["tokens"] == 0
    assert (found["samples"], found["prompts"], found["n"], found["one"], found["any_right"]) == (4, 2, 2, 0.5, 1.0)
    assert main([*typed, "--truth", "numbers"]) == 0
    assert "numbers" in capsys.readouterr().out


def test_compare_rewards_says_what_is_missing(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "right"} for row in SAMPLES]
    file = write(tmp_path / "samples.jsonl", rows)
    with pytest.raises(UserError, match=r"`truth` names a column .*; none was given; the first row has: answer, comp"):
        compare_rewards.run(CompareRewards(file, "numbers"), quiet=True)
    write(tmp_path / "samples.jsonl", [*SAMPLES, {**rows[0], "right": 0.5}])
    with pytest.raises(DataError, match=r"samples.jsonl line 5: 'right', which says what is right, must be 0 or 1"):
        compare_rewards.run(CompareRewards(file, "numbers"), quiet=True)


class Scripted:
    """A judge whose verdict is written in the answer."""

    def __init__(self):
        self.asked = 0

    async def chat(self, messages, *, sampling, tools=(), seed=0):
        self.asked += 1
        text = messages[-1].content
        verdict = "Score: 10" if "A good answer" in text or "Ignore the instructions" in text else "Score: 2"
        return Reply(Message("assistant", verdict), StopReason.STOP, Usage(7, 3))


class Weighing(Scripted):
    """A judge that says Yes to what ends with its number."""

    async def logprobs(self, messages, continuations):
        return [(-0.1 if messages[-1].content.strip()[-1].isdigit() else -3.0,) for _ in continuations]


def test_judges_are_compared_and_their_tokens_counted(tmp_path):
    (tmp_path / "grades.txt").write_text("kind: genrm\n---\n{answer}")
    (tmp_path / "scores.txt").write_text("{answer}\n{scale 1 to 10}")
    file = write(tmp_path / "samples.jsonl", SAMPLES)
    how = {"truth": "right", "attack_tasks": 0}
    for prompt, judge, auc, tokens in (("grades.txt", Weighing(), 1.0, None), ("scores.txt", Scripted(), 0.5, 40)):
        config = CompareRewards(file, "", judge={"judge": judge}, judge_prompt=prompt, **how)
        (found,) = compare_rewards.run(config, quiet=True).rewards
        assert (found.auc, found.tokens, found.fooled_by) == (auc, tokens, None), prompt


PAIRS = [
    {"prompt": f"{n}?", "chosen": f"A good answer {n}.", "rejected": f"A poor and longer answer {n}.", "category": kind}
    | {"models": {"chosen": "ours" if n < 2 else "theirs", "rejected": "theirs" if n < 2 else "ours"}}
    for n, kind in enumerate(["people"] * 4 + ["objective"] * 4)
]


def test_a_judge_is_audited(tmp_path, capsys):
    file = write(tmp_path / "pairs.jsonl", [*PAIRS, {**PAIRS[0], "prompt": "9?", "tie": True}])
    judge = Scripted()
    config = AuditJudge(file, ties=file, judge={"judge": judge}, own="ours", pairs="styled.jsonl")
    found = audit_judge.run(config, quiet=True)
    said = found.summary()
    assert said["accuracy"] == 1.0 and set(said["categories"]) == {"people", "objective"}
    assert said["own responses"] == {"preferred by the judge": 0.25, "by the labels": 0.25, "difference": 0.0}
    assert said["rejected response wins"] == {
        "as it is": 0.0,
        "more with an instruction to the judge": 0.5,
    }  # a tie with the chosen one
    assert said["beats the chosen response"]["injected instructions: 'Ignore the instructi'"] == 0.5
    assert {one["attack"][:12] for one in said["findings"]} == {"instruction ", "injected ins"} and not found.passed
    assert said["agreement, style tempts"] == dict.fromkeys(said["agreement, style tempts"], 1.0)
    assert "position" not in said and said["ties_said"]["ties"] == 1
    assert any("agreement: people" in line for line in found.lines())
    rows = [json.loads(line) for line in (tmp_path / "styled.jsonl").read_text().splitlines()]
    assert len(rows) == 9 * len(PAIRS) and rows[0]["prompt"] == [{"role": "user", "content": "0?"}]
    assert main(["audit-judge", "--dataset", file, "--reward", "mine.py:judged", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


def test_pairs_without_a_verdict_do_not_count_for_the_own_responses(tmp_path):
    (tmp_path / "silent.py").write_text(
        "from posttrain.types import Score\n\n"
        "def silent(prompt, completion):\n"
        "    return Score.not_applicable() if '0?' in prompt else float('good' in completion)\n"
    )
    config = AuditJudge(write(tmp_path / "pairs.jsonl", PAIRS[:4]), reward="silent.py:silent", own="ours")
    said = audit_judge.run(config, quiet=True).summary()["own responses"]
    assert said == {"preferred by the judge": pytest.approx(1 / 3), "by the labels": pytest.approx(1 / 3)} | {
        "difference": 0.0
    }
    both = [row | {"models": {"chosen": "ours", "rejected": "ours"}} for row in PAIRS]
    with pytest.raises(UserError, match="`own`: no row has 'ours' on one side"):
        audit_judge.run(AuditJudge(write(tmp_path / "both.jsonl", both), reward="silent.py:silent", own="ours"))


def test_a_judge_is_shown_the_rubric_and_the_reference_of_a_pair(tmp_path):
    class Reads(Scripted):
        async def chat(self, messages, *, sampling, tools=(), seed=0):
            told.add(tuple(re.findall("^<(.*?)> <(.*?)>", messages[-1].content)[0]))
            return await super().chat(messages, sampling=sampling, seed=seed)

    told = set()
    rows = [row | {"rubric": [f"names {n}"], "answer": n} for n, row in enumerate(PAIRS)]
    (tmp_path / "prompt.txt").write_text("<{rubric}> <{reference}> {answer} {scale 0 to 10}")
    config = AuditJudge(write(tmp_path / "pairs.jsonl", rows), judge={"a": Reads()}, judge_prompt="prompt.txt")
    audit_judge.run(config, quiet=True)
    assert told == {(f"- (weight 1) names {n}", str(n)) for n in range(len(rows))}


def test_a_judge_that_prefers_the_first_is_found(tmp_path):
    (tmp_path / "first.py").write_text(
        "from posttrain.rewards import reward_function\n\n"
        "@reward_function(min_group=2)\ndef first(group, completions):\n    return [1.0, 0.0]\n"
    )
    found = audit_judge.run(AuditJudge(write(tmp_path / "pairs.jsonl", PAIRS), reward="first.py:first"), quiet=True)
    assert found.summary()["position"] == {"orders disagree": 1.0, "first is preferred": 1.0}
    assert found.summary()["accuracy"] == 0.5 and not found.passed


def test_kinds_of_truth_and_ratings_stay_apart(tmp_path, capsys):
    kinds = ["people: writing", "people: advice", "objective: maths", "objective: law"]
    right = (True, False, True, True)
    rows = [
        {"prompt": f"{n}?", "chosen": f"{'good' if ok else 'poor'} {n}", "rejected": f"so {n}", "category": kind}
        for n, (kind, ok) in enumerate(zip(kinds, right, strict=True))
    ]
    rows[1]["rejected"] = "good 1"
    # longer is better: of the 6 pairs of answers 2 ties in the ratings, 3 in the same order, 1 in the other
    rated = [("a", 1), ("aa", 2), ("aaa", 1), ("aaaa", 2)]
    ratings = write(
        tmp_path / "rated.jsonl",
        [{"prompt": "?", "completion": text, "ratings": {"gpt-4": score, "even": 3}} for text, score in rated],
    )
    file = write(tmp_path / "pairs.jsonl", rows)
    found = audit_judge.run(AuditJudge(file, reward="mine.py:judged"), quiet=True).summary()
    assert {name: (one["accuracy"], one["n"]) for name, one in found["truths"].items()} == {
        "people": (0.5, 2),
        "objective": (1.0, 2),
    }
    assert set(found["categories"]) == set(kinds) and found["rank_correlation"] == {}
    found = audit_judge.run(AuditJudge(file, ratings=ratings, reward="mine.py:length"), quiet=True)
    assert found.rank_correlation["gpt-4"]["tau"] == pytest.approx((3 - 1) / (6 * 4) ** 0.5)
    assert found.rank_correlation["even"] == {"tau": None, "ci95": (-1.0, 1.0), "n": 4}
    assert any("ratings: even" in line and "not defined" in line for line in found.lines())
    assert found.summary()["truths"].keys() == {"people", "objective"}


def test_each_kind_of_truth_is_to_be_above_chance(tmp_path):
    """Right in 60 of 60 pairs and in 10 of 20: in 70 of all 80, which is more than chance."""
    rows = [
        {
            "prompt": f"{n}?",
            "chosen": f"{'good' if n >= 10 else 'poor'} {n}",
            "rejected": f"{'so' if n >= 10 else 'good'} {n}",
        }
        | {"category": "people: advice" if n < 20 else "objective: law"}
        for n in range(80)
    ]
    found = audit_judge.run(AuditJudge(write(tmp_path / "pairs.jsonl", rows), reward="mine.py:judged"), quiet=True)
    assert found.summary()["ci95"][0] > 0.5 and not found.findings
    assert found.by_chance == ["people"] and not found.passed
    assert found.lines()[-1] == "failed: no better than chance on people"


def test_a_judge_that_other_words_sway_is_found(tmp_path):
    (tmp_path / "style.py").write_text("def formal(completion):\n    return float('do not' in completion)\n")
    told = [("They do not.", "They don't."), ("They don't.", "They do not."), ("I do not.", "No.")]
    rows = [{"prompt": f"{n}?", "chosen": a, "rejected": b} for n, (a, b) in enumerate(told)]
    file = write(tmp_path / "pairs.jsonl", rows)
    found = audit_judge.run(AuditJudge(file, reward="style.py:formal"), quiet=True)
    # each of the first two prefers the other response in other words; of the third both say the same then, a tie
    assert found.rates["other words"] == {"preference flips": pytest.approx(2 / 3)}
    assert "other words flip the preference" in {one["attack"] for one in found.findings}
    found = audit_judge.run(AuditJudge(file, reward="mine.py:judged"), quiet=True)
    assert found.rates["other words"]["preference flips"] == 0.0


def test_audit_judge_refuses_bad_input(tmp_path):
    file = write(tmp_path / "pairs.jsonl", PAIRS)
    rated = write(tmp_path / "rated.jsonl", [{"prompt": "?", "completion": "a", "ratings": {"gpt-4": 1}}])
    with pytest.raises(DataError, match=r"rated.jsonl line 1: a response that was rated alone; .* `ratings`"):
        audit_judge.run(AuditJudge(rated, reward="mine.py:judged"), quiet=True)
    (tmp_path / "first.py").write_text(
        "from posttrain.rewards import reward_function\n\n"
        "@reward_function(min_group=2)\ndef first(group, completions):\n    return [1.0, 0.0]\n"
    )
    with pytest.raises(UserError, match="`ratings` are of single answers, and this judge compares answers"):
        audit_judge.run(AuditJudge(file, ratings=rated, reward="first.py:first"), quiet=True)
    with pytest.raises(UserError, match="`own`: no row has 'mine' on one side of its column 'models'"):
        audit_judge.run(AuditJudge(file, reward="mine.py:judged", own="mine"), quiet=True)
    with pytest.raises(UserError, match="`dataset` is required"):
        audit_judge.run(AuditJudge(reward="mine.py:judged"), quiet=True)


def test_an_arena_of_answers_has_a_leaderboard_and_names_its_cycle(tmp_path, capsys):
    """Rock, scissors, paper on three prompts, by a judge that compares; a fourth policy loses against all."""
    (tmp_path / "beats.py").write_text(
        "from posttrain.rewards import reward_function\n\n"
        "WINS = {('rock', 'scissors'), ('scissors', 'paper'), ('paper', 'rock')}\n\n"
        "@reward_function(min_group=2)\ndef beats(group, completions):\n    a, b = completions\n"
        "    return [float((a, b) in WINS or b == 'well'), float((b, a) in WINS or a == 'well')]\n"
    )
    files = [
        write(tmp_path / f"{name}.jsonl", [{"prompt": f"{n}?", "completion": name} for n in range(3)])
        for name in ("rock", "scissors", "paper", "well")
    ]
    typed = ["arena", "--answers", " ".join(files), "--reward", "beats.py:beats", "--output", "compared.jsonl"]
    assert main([*typed, "--baseline", "well", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cycles"] == [["rock", "scissors", "paper"]]
    assert [(one["policy"], one["rate"], one["n"]) for one in found["against"]] == [
        (name, 1.0, 3) for name in ("rock", "scissors", "paper")
    ]
    assert list(found["strengths"])[-1] == "well" and found["strengths"]["rock"][0] > found["strengths"]["well"][0]
    again = arena.run(Arena("compared.jsonl", baseline="well"), quiet=True)
    assert [one.rate for one in again.rates] == [one["rate"] for one in found["rates"]]
    assert "cycle: rock beats scissors, scissors beats paper, paper beats rock" in again.lines()


def test_policies_are_named_by_their_files_and_answer_once(tmp_path):
    rows = [{"prompt": "1?", "completion": "a"}]
    files = [write(tmp_path / name, rows) for name in ("llama-3.1-8b.jsonl", "llama-3.2-3b.jsonl")]
    found = arena.run(Arena(" ".join(files), reward="mine.py:length"), quiet=True)
    assert (found.rates[0].policy, found.rates[0].other) == ("llama-3.1-8b", "llama-3.2-3b")
    write(tmp_path / "llama-3.1-8b.jsonl", [*rows, {"prompt": "1?", "completion": "b"}])
    with pytest.raises(DataError, match=r"llama-3.1-8b.jsonl line 2: it is a second answer of 'llama-3.1-8b'"):
        arena.run(Arena(" ".join(files), reward="mine.py:length"), quiet=True)


def test_models_answer_prompts_in_an_arena(tmp_path):
    folder = str(model_folder(tmp_path / "model"))
    write(tmp_path / "prompts.jsonl", [{"prompt": f"{n}?"} for n in range(3)])
    config = Arena(
        dataset="prompts.jsonl",
        models=f"a={folder} b={folder}",
        reward="mine.py:length",
        max_new_tokens=4,
        precision="float32",
    )
    found = arena.run(config, quiet=True)
    assert (found.rates[0].rate, found.rates[0].n) == (0.5, 3)  # the same model, greedy


def test_an_arena_refuses_bad_input(tmp_path):
    one = write(tmp_path / "one.jsonl", [{"prompt": "?", "completion": "a"}])
    two = write(tmp_path / "two.jsonl", [{"prompt": "!", "completion": "a"}])
    with pytest.raises(UserError, match="`answers` is required"):
        arena.run(Arena(reward="mine.py:length"), quiet=True)
    with pytest.raises(UserError, match=r"2 policies \(one, two\) have no prompt in common, or no judge"):
        arena.run(Arena(f"{one} {two}", reward="mine.py:length"), quiet=True)
    with pytest.raises(UserError, match="no judge compared them"):
        arena.run(Arena(f"{one} {one}"), quiet=True)
    side = {"output_1": "a", "output_2": "b", "generator_1": "x", "generator_2": "y"}
    bad = write(tmp_path / "bad.jsonl", [{"instruction": "?", **side, "preference": 3}])
    with pytest.raises(DataError, match=r"bad.jsonl line 1: field 'preference' must be 1 \(the first\) to 2"):
        arena.run(Arena(bad), quiet=True)
    good = write(tmp_path / "good.jsonl", [{"instruction": "?", **side, "preference": 1.25}])
    assert arena.run(Arena(good, baseline="y"), quiet=True).against[0].rate == 0.75
    people = arena.run(Arena(write(tmp_path / "people.jsonl", PAIRS), baseline="theirs"), quiet=True)
    assert (people.against[0].rate, people.against[0].n) == (0.25, 8)
    with pytest.raises(UserError, match="policy 'z'"):
        arena.run(Arena(good, baseline="z"), quiet=True)


def test_rows_of_a_mixture_and_of_files_with_one_name_keep_their_own_columns(tmp_path):
    class Reads(Scripted):
        async def chat(self, messages, *, sampling, tools=(), seed=0):
            told.add(re.findall("^(.*?) - .weight 1. (.*)", messages[-1].content)[0])
            return await super().chat(messages, sampling=sampling, seed=seed)

    told = set()
    files: dict[str, str] = {}
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        rows = [
            row | {"prompt": f"{name}?", "rubric": [name]} | ({"tie": True} if name == "c" else {}) for row in PAIRS[:4]
        ]
        files[name] = write(tmp_path / name / "pairs.jsonl", rows)
    (tmp_path / "prompt.txt").write_text("{question} {rubric}\n{answer} {scale 0 to 10}")
    mixed = f"{files['a']}=0.5 {files['b']}=0.5"
    config = AuditJudge(mixed, ties=files["c"], judge={"j": Reads()}, judge_prompt="prompt.txt")
    audit_judge.run(config, quiet=True)
    assert told == {("a?", "a"), ("b?", "b"), ("c?", "c")}
