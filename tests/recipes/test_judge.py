"""Feedback by judges through the command line, against a scripted server."""

import json
import math
import re
from pathlib import Path

import pytest

from posttrain.annotation.store import projects
from posttrain.annotation.store.database import open_store
from posttrain.cli import main
from posttrain.data import load_preferences
from posttrain.engine import openai_chat
from tests.fake_openai import error, fake_openai
from tests.recipes.folders import model_folder

pytest.importorskip("openai")

PAIRS = [
    {"id": "p", "prompt": "1?", "chosen": "long answer", "rejected": "short"},
    {"id": "q", "prompt": "2?", "chosen": "x", "rejected": "much longer"},
    {"id": "r", "prompt": "3?", "chosen": "same", "rejected": "size"},
]


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.001)
    monkeypatch.setattr(openai_chat, "ATTEMPTS", 3)
    monkeypatch.chdir(tmp_path)
    write("pairs.jsonl", PAIRS)


@pytest.fixture
def posttrain(capsys):
    def run(*words):
        capsys.readouterr()
        code = main([*map(str, words), "--quiet"])
        return code, *capsys.readouterr()

    return run


def write(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def answers(body) -> tuple[str, str]:
    (found,) = re.findall(r"answer A\]\n(.*?)\n\[\w+ answer B\]\n(.*?)\n\[", body["messages"][-1]["content"], re.DOTALL)
    return found


def longer(body) -> str:
    a, b = map(len, answers(body))
    return f"So.\nWinner: {'A' if a > b else 'B' if b > a else 'tie'}"


def by_size(body) -> str:
    (text,) = re.findall(r"answer\]\n(.*?)\n\[", body["messages"][-1]["content"], re.DOTALL)
    return f"Score: {min(10, len(text))}"


JUDGE = ["judge", "--dataset", "pairs.jsonl", "--output", "out.jsonl"]


def test_pairs_are_labelled_by_both_orders_with_their_cost(posttrain):
    with fake_openai(answer=longer) as server:
        code, out, _ = posttrain(*JUDGE, "--judge", f"a={server.url}", "--judge-prompt", "pairwise", "--json")
        assert code == 0 and len(server.asked) == 6
    found = json.loads(out)
    assert (found["rows"], found["kept"], found["ties"], found["swapped"]) == (3, 3, 1, 0.0)
    assert found["spent"] == {"a": {"prompt_tokens": 600, "completion_tokens": 60, "verdicts": 6}}
    assert found["agreement"] == {"a": 0.5}  # right on p, wrong on q, and a tie on r
    rows = read("out.jsonl")
    assert [(row["chosen"], row["rejected"], row.get("strength"), row.get("tie")) for row in rows] == [
        ("long answer", "short", 1.0, None),
        ("much longer", "x", 1.0, None),
        ("same", "size", None, True),
    ]
    assert [one.chosen for one in load_preferences("out.jsonl")] == ["long answer", "much longer"]
    assert not list(Path().glob("out.jsonl.*"))


def test_one_answer_is_scored_and_several_are_responses_with_scores(posttrain):
    write(
        "one.jsonl",
        [{"prompt": "1?", "completion": "abc"}, {"prompt": "2?", "completions": ["a", {"text": "bb"}, "ccc"]}],
    )
    with fake_openai(answer=by_size) as server:
        assert posttrain(*JUDGE, "--dataset", "one.jsonl", "--judge", f"a={server.url}")[0] == 0
    one, several = read("out.jsonl")
    assert (one["completion"], one["score"]) == ("abc", 0.3)
    assert (several["responses"], several["scores"]) == (["a", "bb", "ccc"], [0.1, 0.2, 0.3])
    write("several.jsonl", [several])
    assert [(one.chosen, one.rejected) for one in load_preferences("several.jsonl")] == [
        ("bb", "a"),
        ("ccc", "a"),
        ("ccc", "bb"),
    ]


def test_what_judges_and_positions_disagree_on_goes_to_people(posttrain):
    def shorter(body):
        a, b = map(len, answers(body))
        return (
            "Winner: A"
            if answers(body)[0] == "same"
            else f"Winner: {'B' if a > b else 'A'}"
            if "2?" in str(body)
            else longer(body)
        )

    words = ["--judge-prompt", "pairwise", "--disputed", "people.jsonl"]
    with fake_openai(answer=longer) as one, fake_openai(answer=shorter) as other:
        code, out, _ = posttrain(*JUDGE, "--judge", f"a={one.url} b={other.url}", *words)
    assert code == 0 and "1 of 3 rows in out.jsonl, 0 of them ties; 2 disputed; verdicts on 33% changed" in out
    assert [row["id"] for row in read("out.jsonl")] == ["p"]
    assert posttrain("annotate", "import", "--project", "hard", "--dataset", "people.jsonl", "--store", "a.db")[0] == 0
    with open_store("a.db").read() as session:
        assert projects.names_of_items(session, "hard") == {"q", "r"}


def test_consensus_and_accuracy_decide_what_is_chosen(posttrain):
    with (
        fake_openai(answer=longer) as one,
        fake_openai(answer=lambda body: "Winner: B" if "long answer" in answers(body)[0] else "Winner: A") as other,
    ):
        judges = [
            "--dataset",
            "pairs.jsonl",
            "--limit",
            "1",
            "--judge",
            f"a={one.url} b={other.url}",
            "--judge-prompt",
            "pairwise",
        ]
        for words, chosen in (
            (["--accuracy", "a=0.9 b=0.6"], "long answer"),
            (["--accuracy", "a=0.6 b=0.9", "--consensus", "majority"], "short"),
            (["--consensus", "minimum"], None),
            (["--consensus", "majority"], None),
        ):
            Path("out.jsonl").unlink(missing_ok=True)
            assert posttrain("judge", "--output", "out.jsonl", *judges, *words)[0] == 0
            (row,) = read("out.jsonl")
            assert ("tie" in row) == (chosen is None) and (chosen is None or row["chosen"] == chosen)


def test_a_killed_run_goes_on_and_asks_nothing_twice(posttrain, monkeypatch):
    monkeypatch.setattr("posttrain.recipes.judge.TOGETHER", 1)
    words = [*JUDGE, "--judge-prompt", "pairwise", "--judge-concurrency", "1"]
    with fake_openai(answer=longer) as server:
        words += ["--judge", f"a={server.url}"]
        server.fault = lambda body: error(500) if len(server.asked) > 3 else None
        code, _, err = posttrain(*words)
        assert code == 1 and "gave no reply in 3 attempts" in err and not Path("out.jsonl").exists()
        server.fault = lambda body: None
        server.asked.clear()
        code, _, err = posttrain(*words, "--seed", "1")
        assert code == 2 and "has finished parts of this output with other seed" in err
        code, out, _ = posttrain(*words, "--json")
        assert code == 0 and len(server.asked) == 3
    assert json.loads(out)["spent"]["a"]["verdicts"] == 6 and len(read("out.jsonl")) == 3


def test_a_kind_that_changed_in_between_is_refused(posttrain, monkeypatch):
    monkeypatch.setattr("posttrain.recipes.judge.TOGETHER", 1)
    prompt = Path("mine.txt")
    prompt.write_text("kind: pairwise\n---\n[1 answer A]\n{answer_a}\n[2 answer B]\n{answer_b}\n[")
    Path("mine.py").write_text(
        "from posttrain.rewards.judges.kinds import Pairwise\n\nclass Mine(Pairwise):\n    pass\n"
    )
    with fake_openai(answer=longer) as server:
        words = [*JUDGE, "--judge", f"a={server.url}", "--judge-prompt", "mine.txt", "--judge-concurrency", "1"]
        server.fault = lambda body: error(500) if len(server.asked) > 3 else None
        assert posttrain(*words)[0] == 1
        prompt.write_text(prompt.read_text().replace("kind: pairwise", "kind: mine.py:Mine"))
        code, _, err = posttrain(*words)
        assert code == 2 and "has finished parts of this output with other prompts, files" in err


def test_disputed_items_keep_what_people_are_shown(posttrain):
    given = {"item": "round-1 q7", "priority": 3.0, "completions": [{"text": "a", "model": "x"}, {"text": "bb"}]}
    write("items.jsonl", [{"prompt": "1?", **given}])
    words = ["--dataset", "items.jsonl", "--judge-prompt", "pairwise", "--disputed", "people.jsonl"]
    with fake_openai(answer=lambda body: "Winner: A") as server:
        assert posttrain("judge", "--output", "out.jsonl", "--judge", f"a={server.url}", *words)[0] == 1
    (row,) = read("people.jsonl")
    assert {key: row[key] for key in given} == given


def test_a_budget_ends_it_and_a_larger_one_goes_on(posttrain):
    with fake_openai(answer=longer) as server:
        words = [*JUDGE, "--judge-prompt", "pairwise", "--judge", f"a={server.url}", "--judge-budget"]
        code, _, err = posttrain(*words, "4")
        assert code == 1 and "the budget of judges, 4 requests, is used up" in err
        assert posttrain(*words, "6")[0] == 0 and len(server.asked) == 6


def test_a_judge_without_verdicts_labels_nothing(posttrain):
    with fake_openai(answer=lambda body: "Both are nice.") as server:
        words = [*JUDGE, "--judge-prompt", "pairwise", "--judge", f"a={server.url}"]
        code, out, _ = posttrain(*words, "--json")
    found = json.loads(out)
    assert (code, found["kept"], found["unjudged"], Path("out.jsonl").exists()) == (1, 0, 3, False)
    assert "is not written: none of 3 verdicts ends with a line 'Winner: A'" in found["notes"][0]


def test_principles_are_sampled_by_seed_and_those_that_contradict_each_other_are_reported(posttrain):
    rows = [{"name": "long", "preference": "PREFER LONG"}, {"name": "short", "preference": "PREFER SHORT"}]
    Path("c.json").write_text(json.dumps({"principles": [*rows, {"name": "size", "preference": "PREFER LONG too"}]}))

    def by_principle(body):
        said = longer(body)
        other = {"Winner: A": "Winner: B", "Winner: B": "Winner: A"}
        return other.get(said.splitlines()[-1], said) if "PREFER SHORT" in str(body) else said

    with fake_openai(answer=by_principle) as server:
        words = ["--judge", f"a={server.url}", "--constitution", "c.json", "--dataset", "pairs.jsonl", "--json"]
        code, out, _ = posttrain("judge", *words, "--output", "three.jsonl", "--principles", "3")
        assert code == 0 and len(server.asked) == 18
        assert json.loads(out)["conflicts"] == {"long / short": [3, 2], "short / size": [3, 2]}
        for name in ("one.jsonl", "again.jsonl"):
            posttrain("judge", *words, "--output", name)
        posttrain("judge", *words, "--output", "other.jsonl", "--seed", "5")
    assert [row["chosen"] for row in read("three.jsonl")][:2] == ["long answer", "much longer"]  # two of three
    assert read("one.jsonl") == read("again.jsonl") and read("one.jsonl") != read("other.jsonl")


def test_the_policy_itself_judges(posttrain, tmp_path):
    model = model_folder(tmp_path / "model")
    Path("p.txt").write_text("kind: genrm\n---\n{answer}?")
    words = ["--judge", f"self={model}", "--judge-prompt", "p.txt", "--precision", "float32"]
    assert posttrain(*JUDGE, *words)[0] == 0
    assert all("strength" in row or "tie" in row for row in read("out.jsonl"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "--judge is required: NAME=MODEL"),
        ("--judge a=policy", "posttrain judge has no policy to ask"),
        ("--judge {a} --output pairs.jsonl", "pairs.jsonl exists already"),
        ("--judge {a} --disputed out.jsonl", "--output and --disputed must be different files"),
        (
            "--judge {a} --judge-prompt pairwise --dataset one.jsonl",
            "judge 'a' compares 2 or more answers; one.jsonl:1 has 1",
        ),
        ("--judge {a} --fit-weights new.txt", "--fit-weights is of a judge of the kind rubric; pass --judge-prompt"),
        ("--judge {a} --fit-weights pairs.jsonl", "--fit-weights names a new file"),
        ("--judge {a} --dataset one.jsonl --fit-weights new.txt", "--fit-weights needs labelled pairs"),
        ("--judge {a} --constitution default --fit-weights new.txt", "of no constitution; pass one --judge alone"),
        ("--judge {a} --judge-prompt rubric", "it has no column 'rubric', a list of criteria; add it"),
        (
            "--judge {a} --judge-prompt principle",
            "has {{principle}}, a column; add it, or give posttrain judge a --constitution",
        ),
        ("--judge {a} --judge-prompt pairwise --constitution default", "the prompt of judge 'a' has no {{principle}}"),
        ("--judge {a} --constitution none.toml", "cannot read the constitution none.toml"),
        ("--judge {a} --constitution default --principles 99", "--principles is 99, and the constitution has 6"),
        ("--judge {a} --principles 2", "--principles needs a --constitution"),
        ("--judge {a} --accuracy b=0.8", "unknown judge in --accuracy: 'b'"),
        ("--judge {a} --accuracy a=high", "--accuracy has NAME=NUMBER of each judge"),
        ("--judge {a} --accuracy a=0.4", "must be above 0.5, a coin's, and below 1; got 0.4"),
        ("--judge {a} --accuracy a=0.8 --consensus minimum", "a minimum has no weights"),
        ("--judge {a} --judge-prompt genrm", "reads logprobs of grades, which models behind an API do not give"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_asked(posttrain, words, says):
    write("one.jsonl", [{"prompt": "1?", "completion": "abc"}])
    code, out, err = posttrain(*JUDGE, *words.format(a="a=http://127.0.0.1:9/v1#m").split())
    assert code == 2 and out == "" and says.format() in err and err.count("\n") == 1


def test_weights_are_fitted_to_labelled_pairs_and_judge_by_themselves(posttrain):
    """What is right wins over what is polite, where equal weights make a tie."""
    rows = [{"prompt": f"{n}?", "chosen": f"right {n}", "rejected": f"polite {n}"} for n in range(3)]
    write("pairs.jsonl", [*rows, {"prompt": "4?", "chosen": "right and polite", "rejected": "right"}])
    Path("mine.txt").write_text(
        'kind: rubric\nrubric: ["right", {"criterion": "polite", "weight": 1}]\n---\n'
        "answer]\n{answer}\n[criterion]\n{criterion}\n["
    )

    def meets(body):
        asked = re.findall(r"answer\]\n(.*?)\n\[criterion\]\n(.*?)\n\[", body["messages"][-1]["content"], re.DOTALL)
        return f"Met: {'yes' if asked[0][1] in asked[0][0] else 'no'}"

    with fake_openai(answer=meets) as server:
        words = [*JUDGE, "--judge", f"a={server.url}", "--judge-prompt", "mine.txt", "--json"]
        code, out, _ = posttrain(*words, "--fit-weights", "fitted.txt")
        found = json.loads(out)
        assert code == 0 and found["agreement"] == {"a": (3 * 0.5 + 1) / 4}
        weights = found["weights"]
        # three differences (1, -1) and one (0, 1), by the equations of the optimum
        pulls = [1 / (1 + math.exp(weights["right"] - weights["polite"])), 1 / (1 + math.exp(weights["polite"]))]
        assert weights["right"] == pytest.approx(3 * pulls[0]) and weights["polite"] == pytest.approx(
            pulls[1] - 3 * pulls[0]
        )
        Path("out.jsonl").unlink()
        code, out, _ = posttrain(*words[:-3], "--judge-prompt", "fitted.txt", "--json")
        assert code == 0 and json.loads(out)["weights"] == {}
    assert [row["chosen"] for row in read("out.jsonl")][:3] == [f"right {n}" for n in range(3)]
    head = 'kind: rubric\nvotes: 1\nrubric: [{"criterion": "right", "weight": '
    assert Path("fitted.txt").read_text().startswith(head)
