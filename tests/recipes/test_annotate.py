"""`posttrain annotate`, as a user types it."""

import json
import shutil

import pytest
import torch
from sqlalchemy import select
from transformers import LlamaForCausalLM

from posttrain.annotation.acquisition import WORTH
from posttrain.annotation.aggregation import METHODS
from posttrain.annotation.store import projects, work
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Completion, Item
from posttrain.cli import main
from posttrain.data import ChatFormat, load_tasks, load_tokenizer, seed_for
from posttrain.engine.policy import load_policy
from posttrain.engine.scorer import load_scorer
from posttrain.evaluation.policy_kl import kl_from
from posttrain.models.heads import Calibration, load_reward_model
from posttrain.models.load import load_model
from posttrain.recipes.annotate import importing, records
from posttrain.types import Message, Request, Sampling
from tests.annotation.said import SEED
from tests.annotation.worlds import add_user
from tests.recipes.folders import model_folder


@pytest.fixture
def example(tmp_path):
    rows = [{"item": r.item, "annotator": r.annotator, "ranking": r.groups, "failed": []} for r in SEED]
    path = tmp_path / "judgements.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("method", METHODS)
def test_the_example_as_json(example, method, capsys):
    assert main(["annotate", "consensus", example, "--method", method, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (item,) = found["items"]
    assert item["item"] == "hot" and item["order"] == [[1], [0], [2]] and item["failed"] == []
    assert item["pairs"] == [[1, 0], [1, 2], [0, 2]]
    assert {one["annotator"]: one["agreement"] for one in found["annotators"]} == {"H1": 1, "H2": 1, "H3": 0}
    assert found["kendall_w"] == pytest.approx(1 / 9) and found["alpha"] == pytest.approx(-5 / 27)
    assert ("strengths" in item) == (method in ("bradley-terry", "plackett-luce"))
    if "strengths" in item:
        assert item["strengths"].keys() == item["standard_errors"].keys() == {"0", "1", "2"}


def test_the_example_for_people(example, capsys):
    assert main(["annotate", "consensus", example]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hot: 1 > 0 > 2"
    assert "Krippendorff's alpha -0.185, Kendall's W 0.111" in lines
    assert lines[-1].startswith("H3: agrees with the consensus in 0.000 of 3 comparisons, with the others in 0.00 (")


def test_ties_fails_and_many_items_for_people(tmp_path, capsys):
    path = tmp_path / "said.jsonl"
    rows = [{"item": n, "annotator": "a", "ranking": [[0, 2]], "failed": [1]} for n in range(25)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["annotate", "consensus", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0: 0 = 2 > 1; failed: 1" and lines[20] == "and 5 more; --json has all"
    assert "Krippendorff's alpha unknown, Kendall's W unknown" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a file of annotations is required: posttrain annotate consensus FILE.jsonl"),
        (["nothing.jsonl"], "there is no file or folder 'nothing.jsonl'"),
        (["nothing.jsonl", "--method", "dawid"], "did you mean 'dawid-skene'?"),
    ],
)
def test_what_people_type_wrong(words, message, capsys):
    assert main(["annotate", "consensus", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra_the_error_says_what_to_install(example, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "crowdkit.aggregation", None)
    assert main(["annotate", "consensus", example, "--method", "dawid-skene"]) == 2
    assert "type: pip install 'posttrain[annotate]'" in capsys.readouterr().err


@pytest.fixture
def asked(tmp_path):
    """A store in which two people have ranked one item of two."""
    path = str(tmp_path / "annotation.db")
    completions = ["b", {"text": "c", "model": "m"}]
    rows = [{"item": f"q{n}", "prompt": "a", "completions": completions, "topic": "t", "priority": -n} for n in (0, 1)]
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["annotate", "import", "--store", path, "--project", "p", "--dataset", str(items)]) == 0
    store = open_store(path)
    for name in ("ann", "ben"):
        rank(store, name)
    store.close()
    return path


def rank(store, name):
    """Someone new ranks the next item."""
    user = add_user(store, name, "p")
    with store.write() as connection:
        assignment = work.next_for(connection, projects.find(connection, "p"), user)
        work.answer(connection, assignment, {"ranking": [[1], [0]]}, sending=f"{name} sent", version=0, seconds=1)


def test_an_export_waits_until_a_share_of_the_items_is_annotated(asked, tmp_path, capsys, monkeypatch):
    out, said, people = tmp_path / "out.jsonl", [], iter(["cat"])

    def announce(line, *, quiet):
        said.append((line, quiet, out.exists()))
        rank(open_store(asked), next(people))

    monkeypatch.setattr(records, "announce", announce)
    monkeypatch.setattr(records, "POLL_S", 0.0)
    words = ["annotate", "export", "--store", asked, "--project", "p", "--output", str(out)]
    assert main([*words, "--to", "ratings", "--wait", "0.5"]) == 2 and not said  # this project makes none
    assert main([*words, "--to", "pairs", "--wait", "0.5", "--json"]) == 0
    line = "0 of 2 items annotated (2 of 6 annotations, 2 people); waiting for 50%; serve with: posttrain annotate"
    assert said == [(f"{line} serve --store {asked}", False, False)]
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["item"], row["annotators"], row["chosen"]) == ("q0", 3, "c")
    store = open_store(asked)
    with store.write() as connection:
        projects.create(connection, "empty")
    capsys.readouterr()
    none = ["annotate", "export", "--store", asked, "--project", "empty", "--output", str(tmp_path / "none.jsonl")]
    assert main([*none, "--wait", "1"]) == 2
    assert "the project 'empty' has no items to wait for" in capsys.readouterr().err


def test_what_a_model_wrote_and_no_database_keeps_is_imported_as_no_letter(tmp_path):
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": "a", "completions": ["b\0c", {"text": "half \ud83d"}]}))
    path = str(tmp_path / "annotation.db")
    words = ["annotate", "import", "--store", path, "--project", "p", "--dataset", str(tmp_path / "items.jsonl")]
    assert main(words) == 0
    with open_store(path).read() as connection:
        (item,) = projects.items(connection, projects.find(connection, "p"))
    assert [one.text for one in item.completions] == ["b\ufffdc", "half \ufffd"]


def test_what_is_imported_and_said_comes_out_again(asked, tmp_path, capsys):
    capsys.readouterr()
    assert main(["annotate", "status", "--store", asked, "--json"]) == 0
    (status,) = json.loads(capsys.readouterr().out)["projects"]
    assert (status["items"], status["wanted"], status["judged"], status["annotators"]) == (2, 6, 2, 2)
    out = tmp_path / "out.jsonl"
    assert main(["annotate", "export", "--store", asked, "--project", "p", "--output", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["annotator"] for row in rows] == ["ann", "ben"] and rows[0]["details"] == {"topic": "t"}
    assert [one["model"] for one in rows[0]["completions"]] == ["", "m"]
    assert main(["annotate", "consensus", str(out)]) == 0
    assert "q0: 1 > 0" in capsys.readouterr().out
    known = [row | {"item": "known", "check": True} for row in rows]
    out.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *known]))
    assert main(["annotate", "consensus", str(out)]) == 0
    assert "known" not in capsys.readouterr().out
    pairs = ["annotate", "export", "--store", asked, "--project", "p", "--to", "pairs", "--output"]
    assert main([*pairs, str(out)]) == 2 and "exists already" in capsys.readouterr().err
    assert main([*pairs, str(tmp_path / "pairs.jsonl")]) == 0
    (pair,) = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert (pair["chosen"], pair["rejected"], pair["strength"], pair["item"]) == ("c", "b", 1, "q0")
    assert (pair["project"], pair["method"], pair["models"]) == ("p", "majority", {"chosen": "m", "rejected": ""})


def test_users_are_listed_invited_and_locked_out(asked, capsys):
    capsys.readouterr()
    words = ["annotate", "users", "--store", asked, "--json"]
    assert main([*words, "--invite", "annotator", "--project", "p", "--url", "https://a.example/"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [user["name"] for user in found["users"]] == ["ann", "ben"]
    assert found["link"].startswith("https://a.example/invite/")
    assert main([*words, "--disable", "ann"]) == 0
    assert [user["disabled"] for user in json.loads(capsys.readouterr().out)["users"]] == [True, False]
    assert main([*words[:-1], "--enable", "ann"]) == 0
    assert "ann  annotator, since" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "--project", "p", "--output", "out.txt"], "--output NAME.jsonl"),
        (["export", "--output", "out.jsonl"], "--project is required"),
        (["export", "--project", "q", "--output", "out.jsonl"], "there is no project 'q'; there are: 'p'"),
        (["export", "--project", "p", "--output", "no/out.jsonl"], "there is no folder"),
        (["export", "--project", "p", "--output", "out.jsonl", "--to", "pair"], "did you mean 'pairs'?"),
        (
            ["export", "--project", "p", "--output", "out.jsonl", "--to", "steps"],
            "makes no steps; type --to pairs or ties or judgements",
        ),
        (
            ["export", "--project", "p", "--output", "out.jsonl", "--to", "pairs", "--history"],
            "--history needs --to rows",
        ),
        (["status", "--project", "q"], "there is no project 'q'"),
        (["users", "--invite", "king"], "must be annotator or manager"),
        (["users", "--project", "p"], "pass --invite annotator too"),
        (["users", "--disable", "eve"], "there is no user 'eve'; there are: ann, ben"),
        (["users", "--invite", "annotator", "--uses", "0"], "--uses must be 1 or more"),
        (["import", "--dataset", "x.jsonl"], "--project is required"),
        (["import", "--project", "p"], "--dataset is required"),
        (["import", "--project", "p", "--dataset", "none.jsonl"], "there is no file"),
        (["serve", "--port", "0"], "--port must be 1 to 65535"),
        (["serve", "--url", "feedback.example"], "--url must be http or https and a host"),
        (["serve", "--url", "https://feedback.example/pages"], "--url must have no path"),
        (["serve", "--url", "https://feedback.example:x"], "--url must be http or https and a host"),
        (["serve", "--url", "https://feedback.example?a=b"], "--url must be http or https and a host"),
    ],
)
def test_what_people_type_wrong_in_the_store(asked, words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["annotate", *words, "--store", asked]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("out*"))


def test_a_backup_is_named_by_the_time_or_as_told(asked, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["annotate", "backup", "--store", asked]) == 0
    (made,) = tmp_path.glob("*-20*-*.db")
    assert capsys.readouterr().out == f"2 judgements in {made.name}, integrity checked\n"
    assert main(["annotate", "backup", "--store", asked, "--output", "one.db", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "one.db", "judgements": 2}
    assert main(["annotate", "backup", "--store", asked, "--output", "one.db"]) == 2
    assert "one.db is there already" in capsys.readouterr().err


@pytest.fixture
def pool(folder, tmp_path):
    """Nine items to choose from, one of them a known one, and an ensemble whose members differ most on the last."""
    rows = [{"item": f"q{n}", "prompt": "a", "completions": [f"b{n}", "c" * n]} for n in range(1, 9)]
    rows.append({"item": "known", "prompt": "a", "completions": ["b", "c"], "expected": {"ranking": [[0], [1]]}})
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = load_reward_model(str(folder / "model"), dtype=torch.float32, seed=1, members=3)
    made.save(tmp_path / "ensemble", padding=0, calibration=Calibration((0.0,) * 3, 1.0))
    single = load_reward_model(str(folder / "model"), dtype=torch.float32, seed=1)
    single.save(tmp_path / "single", padding=0, calibration=Calibration((0.0,), 1.0))
    raw = load_reward_model(str(folder / "model"), dtype=torch.float32, seed=1, members=3)
    raw.save(tmp_path / "raw", padding=0)
    row = {"item": "far", "prompt": "a", "completions": ["b", "c" * 300]}
    (tmp_path / "long.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "alone.jsonl").write_text(json.dumps(row | {"item": "alone", "completions": ["b"]}) + "\n")
    for name in ("ensemble", "single", "raw"):
        load_tokenizer(str(folder / "model")).save_pretrained(tmp_path / name)
    return tmp_path


def import_of(pool, *words, name="chosen"):
    """Import of the pool into one project; the names that are there then, in order."""
    store = str(pool / f"{name}.db")
    options = ["--store", store, "--project", "p", "--dataset", str(pool / "pool.jsonl"), "--quiet", "--json"]
    assert main(["annotate", "import", *options, *words]) == 0
    opened = open_store(store)
    with opened.read() as connection:
        found = projects.names_of_items(connection, "p")
        assert projects.names_of_items(connection, "q") == set()
    opened.close()
    return found


@pytest.mark.parametrize("by", ["disagreement", "information"])
def test_the_items_on_which_the_ensemble_disagrees_are_asked_first(pool, by, capsys):
    scorer = load_scorer(str(pool / "ensemble"), precision="float32")
    rows = [json.loads(line) for line in (pool / "pool.jsonl").read_text().splitlines()][:-1]
    told = {
        row["item"]: scorer([[Message("user", "a"), Message("assistant", text)] for text in row["completions"]])
        for row in rows
    }
    order = sorted(told, key=lambda name: -WORTH[by]([a - b for a, b in zip(*told[name], strict=True)]))
    assert len({round(WORTH[by]([a - b for a, b in zip(*each, strict=True)]), 9) for each in told.values()}) == 8
    chosen = ["--choose", by, "--reward-model", str(pool / "ensemble"), "--precision", "float32", "--ask", "3"]
    assert import_of(pool, *chosen) == {*order[:3], "known"}
    assert json.loads(capsys.readouterr().out) == {"project": "p", "items": 4, "there": 0, "skipped": 0, "unasked": 5}
    assert import_of(pool, *chosen) == {*order[:6], "known"}  # of those that are not there yet
    assert json.loads(capsys.readouterr().out) == {"project": "p", "items": 3, "there": 4, "skipped": 0, "unasked": 2}
    assert import_of(pool) == {*order, "known"}


def test_what_is_there_already_is_not_sampled_again(folder, tmp_path, capsys, monkeypatch):
    """And an item's answers do not depend on which others are sampled beside; those of the same prompt differ."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "2?", "id": f"q{n}"}) + "\n" for n in range(4)))

    def sampled(name, *words):
        options = ["--store", str(tmp_path / f"{name}.db"), "--project", "p", "--dataset", str(prompts), "--json"]
        model = ["--models", str(folder / "model"), "--completions", "3", "--max-new-tokens", "6", "--quiet"]
        assert main(["annotate", "import", *options, *model, *words]) == 0
        return json.loads(capsys.readouterr().out)

    def answers(name):
        store = open_store(str(tmp_path / f"{name}.db"))
        with store.read() as connection:
            items = connection.scalars(select(Item).where(Item.project_id == projects.find(connection, "p").id))
            found = {item.name: [completion.text for completion in item.completions] for item in items}
        store.close()
        return found

    assert sampled("parts", "--limit", "2") == {"project": "p", "items": 2, "there": 0, "skipped": 0, "unasked": 0}
    assert sampled("parts") == {"project": "p", "items": 2, "there": 2, "skipped": 0, "unasked": 0}
    sampled("whole")
    assert answers("parts") == answers("whole") and len({*map(str, answers("whole").values())}) == 4
    monkeypatch.setattr(importing, "load_policy", None)
    assert sampled("parts")["there"] == 4


def test_where_one_answer_is_enough_one_is_sampled(folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "2?"}\n')

    def sampled(*words):
        options = ["--store", str(tmp_path / "a.db"), "--dataset", str(prompts), "--json", "--quiet"]
        return main(["annotate", "import", *options, "--models", str(folder / "model"), *words])

    for kind in ("demonstrate", "steps", "thumbs", "score"):
        assert sampled("--project", kind, "--kind", kind, "--completions", "1", "--max-new-tokens", "6") == 0
        assert json.loads(capsys.readouterr().out)["items"] == 1
    for kind, count, message in (
        ("demonstrate", "2", "to write the answer there must be 0 to 1 answers; 2 of each of 1 model is 2"),
        ("compare", "3", "there must be 2 to 2 answers; 3 of each of 1 model is 3"),
        ("rank", "1", "there must be 2 to 9 answers; 1 of each of 1 model is 1"),
    ):
        assert sampled("--project", "new", "--kind", kind, "--completions", count) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_prompt_to_which_all_answers_are_the_same_is_left_out(folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "2?"}\n')
    options = ["--store", str(tmp_path / "p.db"), "--project", "p", "--dataset", str(prompts), "--json", "--quiet"]
    greedy = ["--models", str(folder / "model"), "--temperature", "0.0001", "--max-new-tokens", "6"]
    assert main(["annotate", "import", *options, *greedy]) == 0
    assert json.loads(capsys.readouterr().out) == {"project": "p", "items": 0, "there": 0, "skipped": 1, "unasked": 0}


def test_zeros_that_a_model_writes_do_not_stop_an_import(folder, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "2?"}\n')
    monkeypatch.setattr(ChatFormat, "decode", lambda _, ids: f"{list(ids)}\0")
    options = ["--store", str(tmp_path / "p.db"), "--project", "p", "--dataset", str(prompts), "--quiet"]
    model = ["--models", str(folder / "model"), "--completions", "3", "--max-new-tokens", "6"]
    assert main(["annotate", "import", *options, *model]) == 0
    store = open_store(str(tmp_path / "p.db"))
    with store.read() as connection:
        assert {text[-1] for text in connection.scalars(select(Completion.text))} == {"\ufffd"}
    store.close()


def test_where_the_policy_has_moved_furthest_is_asked_first(folder, tmp_path, capsys):
    """From what was sampled, as it was sampled: measured here again, one answer at a time."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n}?" * n, "id": f"q{n}"}) + "\n" for n in range(1, 7)))
    earlier, now = str(model_folder(tmp_path / "earlier", seed=1)), str(folder / "model")
    store, project = str(tmp_path / "p.db"), ["--project", "p", "--kind", "rank", "--precision", "float32"]
    options = ["--store", store, *project, "--dataset", str(prompts), "--quiet", "--json"]
    sampling = ["--models", now, "--completions", "3", "--max-new-tokens", "6"]
    moved = ["--choose", "moved", "--kl-from", earlier]
    assert main(["annotate", "import", *options, *sampling, *moved, "--ask", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"project": "p", "items": 2, "there": 0, "skipped": 0, "unasked": 4}

    policy = load_policy(now, precision="float32")
    before = load_model(earlier, dtype=torch.float32)
    expected = {}
    for task in load_tasks(str(prompts)):
        ids = tuple(policy.chat.prompt_ids(task.prompt))
        requests = [Request(ids, Sampling(6), seed_for(0, now, task.id, turn)) for turn in range(3)]
        each = [kl_from(before, policy.model, [ids], [said.token_ids])[0] for said in policy.engine.generate(requests)]
        expected[task.id] = sum(each) / 3
    order = sorted(expected, key=lambda name: -expected[name])
    assert order != list(expected)
    opened = open_store(store)
    with opened.read() as connection:
        assert projects.names_of_items(connection, "p") == {*order[:2]}
        for item in connection.scalars(select(Item)):
            assert item.details["moved"]["from"] == earlier
            assert item.details["moved"]["kl"] == pytest.approx(expected[item.name], rel=1e-4)
    assert main(["annotate", "import", *options, *sampling, *moved, "--ask", "1"]) == 0
    with opened.read() as connection:
        assert projects.names_of_items(connection, "p") == {*order[:3]}
    opened.close()


def test_what_cannot_be_compared_is_refused_before_anything_is_sampled(folder, tmp_path, capsys, monkeypatch):
    """Also where only the second model cannot."""
    prompts, now = tmp_path / "prompts.jsonl", str(folder / "model")
    prompts.write_text('{"prompt": "2?"}\n')
    other = model_folder(tmp_path / "other")
    tokenizer = load_tokenizer(other)
    tokenizer.add_tokens(["<seen>"])
    tokenizer.save_pretrained(other)
    network = LlamaForCausalLM.from_pretrained(other)
    network.resize_token_embeddings(len(tokenizer.get_vocab()))
    network.save_pretrained(other)
    monkeypatch.setattr(importing, "load_policy", None)
    options = ["--store", str(tmp_path / "p.db"), "--project", "p", "--dataset", str(prompts), "--completions", "1"]
    moved = ["--models", f"{now} {other}", "--ask", "1", "--choose", "moved", "--kl-from", now, "--quiet"]
    assert main(["annotate", "import", *options, *moved]) == 2
    assert "have other tokens; pass an earlier state" in " ".join(capsys.readouterr().err.split())


def test_an_answer_that_two_models_give_is_the_firsts_and_counts_twice_for_how_far_they_moved(folder, tmp_path):
    prompts, earlier = tmp_path / "prompts.jsonl", model_folder(tmp_path / "earlier", seed=1)
    prompts.write_text('{"prompt": "2?"}\n')
    now, copy = folder / "model", tmp_path / "copy"
    shutil.copytree(now, copy)
    options = ["--project", "p", "--dataset", str(prompts), "--precision", "float32", "--temperature", "0.0001"]
    moved = ["--ask", "1", "--choose", "moved", "--kl-from", str(earlier), "--completions", "1"]

    def asked(name, models):
        store = str(tmp_path / f"{name}.db")
        sampling = ["--store", store, "--quiet", "--max-new-tokens", "6", "--models", " ".join(map(str, models))]
        assert main(["annotate", "import", *options, *moved, *sampling]) == 0
        opened = open_store(store)
        with opened.read() as connection:
            item = connection.scalars(select(Item)).one()
            found = [completion.model for completion in item.completions], item.details["moved"]["kl"]
        opened.close()
        return found

    twice, once = asked("twice", [now, copy, earlier]), asked("once", [now, earlier])
    assert twice[0] == once[0] == [str(now), str(earlier)]
    assert twice[1] / 2 == pytest.approx(once[1] * 2 / 3, rel=1e-4) and once[1] > 0.1  # the earlier one has not moved


def test_some_items_may_be_drawn_by_chance(pool):
    first, second = import_of(pool, "--ask", "2"), import_of(pool, "--ask", "3", "--seed", "1")
    assert len(first) == 3 and len(second) == 6 and "known" in first < second
    drawn = [import_of(pool, "--ask", "2", "--seed", seed, name=f"seed-{seed}") for seed in "01234"]
    assert drawn[0] == first and len({*map(frozenset, drawn)}) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ask", "2", "--choose", "chance"], "unknown way to choose 'chance'"),
        (["--ask", "-1"], "--ask must be 0 or more"),
        (["--choose", "information"], "pass --ask"),
        (["--reward-model", "x"], "pass --ask"),
        (["--ask", "2", "--choose", "information"], "pass --reward-model"),
        (["--ask", "2", "--reward-model", "x"], "--choose random uses no reward model"),
        (["--kl-from", "x"], "pass --ask"),
        (["--ask", "2", "--kl-from", "x"], "--choose random uses no earlier model"),
        (["--ask", "2", "--choose", "moved", "--models", "x"], "earlier one with --kl-from"),
        (["--ask", "2", "--choose", "moved", "--kl-from", "x"], "pass the model with --models"),
        (
            ["--ask", "2", "--choose", "moved", "--models", "x", "--kl-from", "y", "--reward-model", "z"],
            "--choose moved uses no reward model; leave out --reward-model",
        ),
        (["--ask", "2", "--choose", "information", "--reward-model", "single"], "one member; train an ensemble"),
        (["--ask", "2", "--choose", "disagreement", "--reward-model", "raw"], "the scores of raw are not calibrated"),
        (
            ["--kind", "steps", "--ask", "2", "--choose", "information", "--reward-model", "ensemble"],
            "here people mark the first wrong step",
        ),
        (
            ["--ask", "2", "--choose", "information", "--reward-model", "ensemble", "--dataset", "long.jsonl"],
            "item 'far' is too long for the reward model, which takes 256 tokens",
        ),
        (
            [
                *("--kind", "thumbs", "--ask", "2", "--dataset", "alone.jsonl"),
                *("--choose", "information", "--reward-model", "ensemble"),
            ],
            "item 'alone' has fewer than two completions",
        ),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(pool, words, message, capsys, monkeypatch):
    monkeypatch.chdir(pool)
    line = ["annotate", "import", "--store", "refused.db", "--project", "p", "--quiet"]
    assert main([*line, *([] if "--dataset" in words else ["--dataset", "pool.jsonl"]), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "field 'prompt' is missing"),
        ({"prompt": "a"}, "has 0 completions"),
        (
            {"prompt": "a", "completions": ["b"]},
            "has 1 completions; to put answers in order, best first there must be 2",
        ),
        ({"prompt": "a", "completions": "b"}, "'completions' must be a list"),
        ({"prompt": "a", "completions": ["b", 3]}, "'completions' has texts, or {text, model}; got 3"),
        ({"prompt": "a", "completions": ["b", "c"], "expected": [1]}, "'expected' must be an answer"),
        ({"prompt": "a", "completions": ["b", "c"], "expected": {"ranking": [[1]]}}, "'expected' is no answer"),
        ({"prompt": "a", "completions": ["b", "c"], "priority": "high"}, "'priority' must be a number"),
    ],
)
def test_items_that_cannot_be_asked_are_named(tmp_path, row, message, capsys):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(row) + "\n")
    words = ["annotate", "import", "--store", str(tmp_path / "a.db"), "--project", "p", "--dataset", str(path)]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_topics_are_imported_for_people_who_talk_with_a_model(tmp_path, capsys):
    store, data, rules = str(tmp_path / "a.db"), tmp_path / "topics.jsonl", tmp_path / "rules.txt"
    system = [{"role": "system", "content": "Be brief."}]
    data.write_text(
        json.dumps({"item": "a", "topic": "A trip."}) + "\n" + json.dumps({"topic": "Tea.", "prompt": system}) + "\n"
    )
    rules.write_text("Do no harm.\n\nDo not lie.\n")
    words = ["annotate", "import", "--store", store, "--dataset", str(data), "--project", "attack"]
    assert main([*words, "--kind", "red-team", "--rules", str(rules)]) == 0
    with open_store(store).read() as connection:
        project = projects.find(connection, "attack")
        assert project.settings["rules"] == ["Do no harm.", "Do not lie."]
        first, second = projects.items(connection, project)
        assert (first.about, first.prompt) == ("A trip.", []) and second.prompt == system
    capsys.readouterr()
    for more, message in (
        (["--kind", "red-team"], "--rules FILE"),
        (["--kind", "red-team", "--rules", str(tmp_path / "none.txt")], "cannot read the rules"),
        (["--kind", "rank"], "prompt"),
        (["--kind", "converse", "--models", "some-model"], "annotate serve --model"),
    ):
        assert main([*words[:-1], "other", *more]) == 2
        assert message in capsys.readouterr().err
    data.write_text(json.dumps({"topic": "A trip.", "prompt": "Where shall I go?"}) + "\n")
    assert main([*words[:-1], "talk", "--kind", "converse"]) == 2
    assert "people say the first word" in capsys.readouterr().err
