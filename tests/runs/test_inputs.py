"""What a run reads: told apart by digest, kept in the run, found again from elsewhere."""

import errno
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.data.digests import model_digest
from posttrain.errors import UserError
from posttrain.runs import read_run
from posttrain.runs.inputs import (
    InputsChanged,
    beside,
    digests_in,
    imported,
    judges_by_option,
    keep_code,
    options_named,
    refuse_changes,
    relocated,
)
from tests.recipes.folders import model_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Data, a reward with two neighbours and a template, in the working directory."""
    for name, text in {
        "a.jsonl": "1\n", "b.jsonl": "2\n", "folder/x.jsonl": "3\n", "r.py": "import near\n",
        "near.py": "from far import x\n", "far.py": "x = 1\n", "other.py": "", "t.jinja": "{{ messages }}",
        "numbers": "a file that is called as a reward is",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = {
    "dataset": "a.jsonl=0.7 b.jsonl=0.3",
    "eval_dataset": "folder",
    "ratings": "*.jsonl",
    "reward": "numbers=1.0 r.py:f=0.2",
    "chat_template": "t.jinja",
    "model": "smollm2-135m-instruct",
    "steps": 4,
}


def test_digests_stand_in_for_paths_and_for_nothing_else(here):
    found = digests_in(OPTIONS)
    assert found.keys() == {"dataset", "eval_dataset", "ratings", "reward", "chat_template"}
    one = "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865"  # sha256 of "1\n"
    two = "53c234e5e8472b6ac51c1ae1cab3fe06fad053beb8ebfd8977b010655bfdd3c3"
    assert found["dataset"] == f"sha256:{one}=0.7 sha256:{two}=0.3"
    assert found["reward"].startswith("numbers=1.0 sha256:") and found["reward"].endswith(":f=0.2")
    assert digests_in({"reward": "numbers", "dataset": "gym:chain_sum", "eval_dataset": "owner/name"}) == {}


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("a.jsonl", {"dataset", "ratings"}),
        ("folder/x.jsonl", {"eval_dataset"}),
        ("r.py", {"reward"}),
        ("near.py", {"reward"}),
        ("far.py", {"reward"}),  # imported by what it imports
        ("other.py", set()),
        ("t.jinja", {"chat_template"}),
        ("numbers", set()),
    ],
)
def test_a_changed_file_changes_the_options_that_read_it(here, file, changed):
    before = digests_in(OPTIONS)
    (here / file).write_text((here / file).read_text() + "\n# changed")
    now = digests_in(OPTIONS)
    assert {name for name in before if before[name] != now[name]} == changed
    assert refuse_changes(before, before, ()) == []
    if changed:
        with pytest.raises(InputsChanged) as error:
            refuse_changes(before, now, sorted(changed)[1:])
        assert error.value.names == (sorted(changed)[0],)
    with pytest.raises(InputsChanged, match="what `new_one` reads changed"):
        refuse_changes(before, before | {"new_one": "sha256:1"}, ())
    assert refuse_changes(before, now, ["steps", *changed]) == sorted(changed)


def test_options_are_named_as_they_are_typed_or_written():
    options = {"reward", "reward_model", "dataset", "steps"}
    for words in (["reward-model,dataset"], ["--reward_model", "dataset"], ["reward-model,", "dataset"]):
        assert options_named(words, options) == ["reward_model", "dataset"]
    for wrong, hint in {"rewrd": "did you mean 'reward'", "steps": "There are: dataset, reward, reward-model"}.items():
        with pytest.raises(UserError, match=f"unknown option in `accept_changes`: '{wrong}'.*{hint}"):
            options_named([wrong], options)
    with pytest.raises(UserError, match="'gold'"):  # which this recipe has not
        options_named(["gold"], options)


def test_reward_models_are_told_apart_by_their_options():
    judges = {"runs/a": "A", "b c": "B", "runs/gold": "G"}
    assert judges_by_option({"reward_model": "runs/a 'b c'", "gold_model": "runs/gold"}, judges) == {
        "reward_model": ["A", "B"],
        "gold_model": ["G"],
        "teacher": [],
        "prover": [],
    }
    assert judges_by_option({"teacher": "b c"}, judges) == {
        "reward_model": [],
        "gold_model": [],
        "teacher": ["B"],
        "prover": [],
    }
    assert judges_by_option({"reward_model": "runs/a", "gold_model": "runs/a"}, judges)["gold_model"] == ["A"]
    assert judges_by_option({"steps": 3}, {}) == {"reward_model": [], "gold_model": [], "teacher": [], "prover": []}


def test_judges_are_told_apart_by_their_models_and_not_by_their_addresses(tmp_path):
    folders = [model_folder(tmp_path / name, seed=seed) for name, seed in (("one", 0), ("two", 1))]

    def digests(typed):
        judges = {"here/one": str(folders[0]), "here/two": str(folders[1])}
        options = {"judge": typed}
        return digests_in(options, judges_by_option(options, judges)).get("judge")

    first = digests("kind=http://a/v1#m brief=here/one")
    assert first == digests("kind=https://b:8000/v1#m brief=here/one") and first.startswith("kind=sha256:")
    assert model_digest(folders[0]) in first
    others = [
        "kind=http://a/v1#n brief=here/one",
        "kind=http://a/v1#m brief=here/two",
        "kin=http://a/v1#m brief=here/one",
    ]
    assert len({first, *map(digests, others), digests("brief=here/one kind=http://a/v1#m")}) == 5
    assert digests("") is None and digests("kind=OWNER/NAME") != digests("kind=OWNER/OTHER")


def test_prompts_of_judges_are_kept_and_found_again(here, tmp_path_factory, monkeypatch):
    (here / "quality").write_text("not a prompt: a name is looked up")
    for name in ("p.txt", "my prompt.txt"):
        (here / name).write_text(f"{name} {{answer}} {{scale 0 to 1}}")
    options = {
        "judge_prompt": "quality kind=p.txt 'brief=my prompt.txt'",
        "judge": "kind=http://a/v1#m brief=OWNER/NAME mine=folder",
    }
    found = digests_in(options)["judge_prompt"]
    assert found.startswith("quality kind=sha256:") and found.count("sha256:") == 2
    run = tmp_path_factory.mktemp("run")
    keep_code(options, run)
    assert sorted(path.name for path in (run / "inputs" / "judge_prompt").rglob("*.txt")) == ["my prompt.txt", "p.txt"]
    starts = [{"folder": str(here), "inputs": digests_in(options)}]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    there = relocated(options, run, starts)
    assert shlex.split(there["judge"]) == ["kind=http://a/v1#m", "brief=OWNER/NAME", f"mine={here}/folder"]
    assert f"kind={here}/p.txt" in there["judge_prompt"]
    assert digests_in(there)["judge_prompt"] == found
    for name in ("p.txt", "my prompt.txt"):
        (here / name).unlink()
    there = relocated(options, run, starts)
    assert digests_in(there)["judge_prompt"] == found and str(run) in there["judge_prompt"]


def test_other_weights_of_the_same_files_are_another_configuration(here):
    before, now = (digests_in({"reward": f"r.py:f={weight}"}) for weight in (1, 2))
    assert refuse_changes(before, now, ()) == [] and refuse_changes(before, now, ["reward"]) == ["reward"]


def test_where_files_are_does_not_matter(here, tmp_path_factory, monkeypatch):
    before = digests_in(OPTIONS)
    moved = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.copytree(here, moved)
    there = {name: text for name, text in OPTIONS.items() if name != "ratings"}
    there |= {"dataset": f"{moved}/a.jsonl=0.7 {moved}/b.jsonl=0.3", "eval_dataset": str(moved / "folder")}
    there |= {"reward": f"numbers=1.0 {moved}/r.py:f=0.2", "ratings": f"{moved}/*.jsonl"}
    monkeypatch.chdir(moved.parent)
    there["chat_template"] = "moved/t.jinja"
    assert digests_in(there) == before


def test_models_are_told_apart_by_their_weights(tmp_path):
    one, same, other = (model_folder(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert model_digest(one) == model_digest(same) != model_digest(other)
    found = digests_in({"model": "runs/x"}, {"model": [str(one)], "reward_model": [str(same), "owner/name"]})
    assert found == {name: f"sha256:{model_digest(one)}" for name in ("model", "reward_model")}


def test_code_is_kept_with_its_neighbours(here, tmp_path):
    assert imported(here / "r.py") == [here / "far.py", here / "near.py"] and imported(here / "t.jinja") == []
    run = tmp_path / "run"
    keep_code(OPTIONS, run)
    keep_code(OPTIONS, run)  # as a resumed run does
    kept = sorted(str(path.relative_to(run / "inputs")) for path in (run / "inputs").rglob("*") if path.is_file())
    assert [name.split("/")[0] + "/" + name.split("/")[-1] for name in kept] == [
        "chat_template/t.jinja",
        "reward/far.py",
        "reward/near.py",
        "reward/r.py",
    ]


def test_a_copy_that_a_full_disk_cut_short_is_made_anew(here, tmp_path, monkeypatch):
    def torn(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space left"):
        disk.setattr(shutil, "copyfile", torn)
        keep_code({"reward": "r.py:f"}, tmp_path / "run")
    keep_code({"reward": "r.py:f"}, tmp_path / "run")
    kept = {path.name: path.read_text() for path in (tmp_path / "run").rglob("*.py")}
    assert kept == {name: (here / name).read_text() for name in ("r.py", "near.py", "far.py")}


def test_paths_are_found_where_the_run_began_or_in_the_run(here, tmp_path_factory, monkeypatch):
    away = tmp_path_factory.mktemp("away")
    run = away / "run"
    keep_code(OPTIONS, run)
    before = digests_in(OPTIONS)
    starts = [{"folder": str(here), "inputs": before}]
    assert relocated(OPTIONS, run, starts) == OPTIONS  # all is here
    monkeypatch.chdir(away)
    found = relocated(OPTIONS, run, starts)
    assert found["dataset"] == f"{here}/a.jsonl=0.7 {here}/b.jsonl=0.3" and found["model"] == OPTIONS["model"]
    assert digests_in(found) == before
    (here / "r.py").unlink()
    (here / "t.jinja").unlink()
    found = relocated(OPTIONS, run, starts)
    assert found["reward"].startswith(f"numbers=1.0 {run}/inputs/reward/")
    assert digests_in(found) == before
    for nowhere in ([], [{}], [{"folder": str(here)}]):  # nowhere, or a run of before there were copies
        assert relocated(OPTIONS, run, nowhere)["reward"] == OPTIONS["reward"]  # whoever reads it says so


def test_a_path_that_was_named_when_the_run_went_on_is_found_where_that_was(here, tmp_path_factory, monkeypatch):
    away, third = tmp_path_factory.mktemp("away"), tmp_path_factory.mktemp("third")
    (away / "copy.jsonl").write_text("1\n")
    monkeypatch.chdir(third)
    starts = [{"folder": str(here)}, {"folder": str(away)}]
    assert relocated({"dataset": "copy.jsonl"}, third, starts) == {"dataset": f"{away}/copy.jsonl"}
    assert relocated({"dataset": "a.jsonl"}, third, starts) == {"dataset": f"{here}/a.jsonl"}


def test_files_of_a_configuration_are_looked_for_beside_it_and_then_here(here):
    conf = here / "conf" / "my rewards"
    conf.mkdir(parents=True)
    for name in ("a.jsonl", "c.jsonl", "r.py", "t.jinja", "model"):
        (conf / name).write_text("")
    file = Path("conf", "my rewards", "run.toml")
    said = {
        "dataset": "a.jsonl=0.7 b.jsonl=0.3",
        "eval_dataset": "gym:chain_sum?min_terms=2",
        "exclude": "c.jsonl",
        "reward": "numbers=1.0 r.py:f=0.2 other.py:g https://host/score.py",
        "chat_template": "t.jinja",
        "environment": "installed-game",
        "model": "model",
        "teacher": "OWNER/NAME",
        "judge": {"kind": "model", "far": "https://host/v1#NAME"},
        "steps": 4,
    }
    found = beside(said, file)
    beside_it = "conf/my rewards"
    assert found == said | {
        "dataset": f"'{beside_it}/a.jsonl=0.7' b.jsonl=0.3",
        "exclude": f"{beside_it}/c.jsonl",
        "reward": f"numbers=1.0 '{beside_it}/r.py:f=0.2' other.py:g https://host/score.py",
        "chat_template": f"{beside_it}/t.jinja",
        "model": f"{beside_it}/model",
        "judge": {"kind": f"{beside_it}/model", "far": "https://host/v1#NAME"},
    }
    table = {"numbers": 1.0, "r.py:f": {"weight": 0.2, "scale": 2}, "other.py:g": 0.5}
    assert list(beside({"reward": table}, file)["reward"].items()) == [
        ("numbers", 1.0),
        (f"{beside_it}/r.py:f", {"weight": 0.2, "scale": 2}),
        ("other.py:g", 0.5),
    ]


@pytest.mark.parametrize(
    ("option", "value", "path"),
    [
        ("reward", "numbers gone.py:f?x=1=0.5", "gone.py"),
        ("reward", {"numbers": 1.0, "gone.py:f": 0.5}, "gone.py"),
        ("dataset", "a.jsonl=0.7 data/gone.csv?encoding=cp1252=0.3", "data/gone.csv"),
        ("environment", "gone.py:Game", "gone.py"),
        ("chat_template", "gone.jinja", "gone.jinja"),
        ("judge_prompt", "kind=gone.txt", "gone.txt"),
    ],
)
def test_a_path_that_is_nowhere_is_told_with_both_places(here, option, value, path):
    (here / "conf").mkdir()
    with pytest.raises(UserError) as error:
        beside({option: value}, Path("conf/run.toml"))
    assert f"conf/run.toml: `{option}` names {path}, which is neither" in str(error.value)
    assert f"in {here / 'conf'}, nor in the working directory, {here};" in str(error.value)
    assert beside({"model": "gone/model", "dataset": "OWNER/NAME:main"}, Path("conf/run.toml")) == {
        "model": "gone/model",  # may be one of the hub
        "dataset": "OWNER/NAME:main",
    }


def test_the_copy_that_the_run_read_last_is_taken_whichever_is_newer(here):
    run = here / "run"
    for name, text in {"x/r.py": "1", "y/r.py": "2", "z/r.py": "old"}.items():
        (here / name).parent.mkdir()
        (here / name).write_text(text)
    options = {"reward": "x/r.py:f=1 numbers=2 y/r.py:f z/r.py:f"}
    keep_code(options, run)
    (here / "z" / "r.py").write_text("new")
    keep_code(options, run)
    before = digests_in(options)
    for name in "xyz":
        shutil.rmtree(here / name)
    for copy in (run / "inputs" / "reward").glob("*/r.py"):  # as copying a run does, in any order
        os.utime(copy, (0, 0) if copy.read_text() == "new" else None)
    found = relocated(options, run, [{"inputs": {}}, {"inputs": before}])
    assert digests_in(found) == before
    texts = [Path(word.rpartition(":")[0]).read_text() for word in found["reward"].split() if ".py" in word]
    assert texts == ["1", "2", "new"]


def test_paths_with_spaces_are_found_and_stay_one(here, tmp_path_factory, monkeypatch):
    home = here / "my files"
    home.mkdir()
    for name in ("a.jsonl", "b c.jsonl", "r.py", "t.jinja", "m"):
        (home / name).write_text("")
    monkeypatch.chdir(tmp_path_factory.mktemp("away"))
    options = {"dataset": "b c.jsonl", "eval_dataset": "a.jsonl=1 'b c.jsonl=2'", "reward": "r.py:f numbers"}
    options |= {"gold": "r.py:f", "chat_template": "t.jinja", "model": "m", "reward_model": "m"}
    found = relocated(options, here, [{"folder": str(home)}])
    assert found == {
        "dataset": f"{home}/b c.jsonl",
        "eval_dataset": f"'{home}/a.jsonl=1' '{home}/b c.jsonl=2'",
        "reward": f"'{home}/r.py:f' numbers",
        "gold": f"'{home}/r.py:f'",
        "chat_template": f"{home}/t.jinja",
        "model": f"{home}/m",
        "reward_model": f"'{home}/m'",
    }


PACKAGE = {
    "p.py": "from pkg.mod import f\nimport other.deep\n", "pkg/__init__.py": "", "pkg/far.py": "", "pkg/sib.py": "",
    "pkg/mod.py": "from .near import g as f\nfrom . import sib\nfrom ..up import x\nfrom ... import out\n",
    "pkg/near.py": "from pkg import far\n", "other/__init__.py": "", "other/deep.py": "", "up.py": "",
}  # fmt: skip


def test_what_a_package_imports_is_imported_and_each_file_of_it_counts(here, monkeypatch):
    (here / "out.py").write_text("")  # which Python does not find either
    here = here / "home"
    here.mkdir()
    monkeypatch.chdir(here)
    for name, text in PACKAGE.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    for file in (Path("p.py"), here / "p.py"):
        assert imported(file) == sorted(file.parent / name for name in PACKAGE if name != "p.py")
    before = digests_in({"reward": "p.py:f"})
    for name, text in PACKAGE.items():
        (here / name).write_text(f"{text}# changed\n")
        assert digests_in({"reward": "p.py:f"}) != before, name
        (here / name).write_text(text)
    keep_code({"reward": "p.py:f"}, here / "run")
    (copy,) = (here / "run" / "inputs" / "reward").glob("*/p.py")
    assert digests_in({"reward": f"{copy}:f"}) == before


@pytest.mark.parametrize("source", ["d/*/train.jsonl", "d/*", "d/**"])
def test_each_file_that_a_glob_finds_counts(here, source):
    for name in ("a", "b"):
        (here / "d" / name).mkdir(parents=True)
        (here / "d" / name / "train.jsonl").write_text(name)
    before = digests_in({"dataset": source})
    assert digests_in({"dataset": str(here / source)}) == before
    for name in ("a", "b"):
        (here / "d" / name / "train.jsonl").write_text("changed")
        assert digests_in({"dataset": source}) != before
        (here / "d" / name / "train.jsonl").write_text(name)


def test_a_run_goes_on_elsewhere_after_its_reward_was_mended(tmp_path, monkeypatch, capsys):
    """The reward fails, the run's folder is moved, the file is mended, and another directory is the working one."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    model_folder(Path("model"))
    Path("tasks.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?", "answer": ""}) + "\n" for i in range(4)))
    broken = "n = []\ndef f(completion):\n    n.append(1)\n    assert len(n) < 9\n    return len(completion) % 3 / 2\n"
    Path("r.py").write_text(broken)
    options = ["--prompts-per-step", "2", "--completions-per-prompt", "2", "--max-new-tokens", "4", "--steps", "4"]
    names = ["--dataset", "tasks.jsonl", "--model", "model", "--reward", "r.py:f"]
    assert main(["rl", *names, *options, "--precision", "float32", "--quiet", "--output", "run"]) == 1
    assert "step 2 is saved in run, --resume continues from there" in capsys.readouterr().err
    shutil.move("run", second / "moved")
    monkeypatch.chdir(second)
    Path(first / "r.py").write_text(broken.replace("assert len(n) < 9", "pass"))

    assert main(["rl", "--resume", "moved", "--quiet"]) == 2
    assert "what --reward reads changed since the run started" in (said := capsys.readouterr().err)
    assert "type --accept-changes reward" in said
    assert main(["rl", "--resume", "moved", "--accept-changes", "rewad", "--quiet"]) == 2
    assert "unknown option in --accept-changes: 'rewad'; did you mean 'reward'" in capsys.readouterr().err
    weights = ["--reward", str(first / "r.py:f=2")]
    assert main(["rl", "--resume", "moved", *weights, "--accept-changes", "model", "--quiet"]) == 2
    assert "what --reward reads changed" in capsys.readouterr().err
    assert main(["rl", "--resume", "moved", "--accept-changes=--reward,dataset", "--quiet"]) == 0
    run = read_run(Path("moved"))
    assert [row["step"] for row in run.metrics] == [1, 2, 3, 4]
    assert run.environment["resumed"][-1]["accepted"] == ["reward"]

    capsys.readouterr()
    assert main(["rl", "--resume", "moved", *weights, "--quiet"]) == 2  # the same file
    assert "started with another configuration: reward was " in capsys.readouterr().err
    assert main(["rl", "--resume", "moved", "--steps", "5", "--quiet"]) == 0  # what was accepted is what it reads now
    shutil.rmtree(first)  # data and model are gone: a copy elsewhere will do, for its digest is the same
    assert main(["rl", "--resume", "moved", "--steps", "6", "--quiet"]) == 2
    assert "first/model, which was not found; restore it, or pass its path with --model" in capsys.readouterr().err
    model_folder(Path("model"))
    assert main(["rl", "--resume", "moved", "--steps", "6", "--model", "model", "--quiet"]) == 2
    assert "tasks.jsonl" in capsys.readouterr().err


def test_changed_data_is_noticed(tmp_path, capsys):
    model_folder(tmp_path / "model")
    rows = [json.dumps({"prompt": f"{i}?", "completion": str(i)}) + "\n" for i in range(4)]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(rows))
    begin = ["sft", "--dataset", str(data), "--model", str(tmp_path / "model"), "--steps", "1", "--quiet"]
    assert main([*begin, "--examples-per-step", "2", "--output", str(tmp_path / "run")]) == 0
    data.write_text("".join(reversed(rows)))
    again = ["sft", "--resume", str(tmp_path / "run"), "--steps", "2", "--quiet"]
    assert main(again) == 2
    assert "what --dataset reads changed" in capsys.readouterr().err
    (tmp_path / "copy.jsonl").write_text("".join(rows))
    assert main([*again, "--dataset", str(tmp_path / "copy.jsonl")]) == 0  # the same data by another name
    assert main(["sft", "--dataset", str(data), "--accept-changes", "dataset"]) == 2
    assert "--accept-changes needs --resume RUN" in capsys.readouterr().err


def test_an_environments_file_and_what_it_imports_are_copied_and_looked_for(here):
    (here / "games").mkdir()
    (here / "games" / "game.py").write_text("from rules import RULES\n")
    (here / "games" / "rules.py").write_text("RULES = 1\n")
    named = {"environment": "games/game.py:Game", "environment_args": "file=games/game.py"}
    before = digests_in(named)
    assert before.keys() == {"environment"} and before["environment"].endswith(":Game")
    keep_code(named, here / "run")
    (copy,) = (here / "run" / "inputs" / "environment").glob("*/game.py")
    assert (copy.parent / "rules.py").read_text() == "RULES = 1\n"
    (here / "games" / "rules.py").write_text("RULES = 2\n")
    assert digests_in(named) != before
    shutil.rmtree(here / "games")
    starts = [{"folder": str(here), "inputs": before}]
    assert relocated(named, here / "run", starts)["environment"] == f"{copy}:Game"
    (here / "installed").mkdir()  # a folder that happens to have the name of an environment
    assert digests_in({"environment": "installed"}) == {}


def test_a_table_of_rewards_runs_from_a_file_and_goes_on_elsewhere(tmp_path, monkeypatch, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "conf").mkdir(parents=True)
    second.mkdir()
    monkeypatch.chdir(first)
    model_folder(Path("conf/model"))
    Path("tasks.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?", "answer": ""}) + "\n" for i in range(4)))
    Path("conf/r.py").write_text(
        "from near import third\ndef f(completion, scale=1):\n    return scale * third(completion)\n"
    )
    Path("conf/near.py").write_text("def third(text):\n    return len(text) % 3 / 9\n")
    Path("conf/run.toml").write_text(
        'dataset = "tasks.jsonl"\nmodel = "model"\nprompts_per_step = 2\ncompletions_per_prompt = 2\n'
        'max_new_tokens = 4\nsteps = 1\nprecision = "float32"\n[reward]\nlength = 0.1\n"r.py:f" = {weight = 0.5, '
        "scale = 2}\n"
    )
    command = ["rl", "--config", "conf/run.toml", "--quiet", "--output", "run"]
    assert main([*command, "--dry-run"]) == 0
    assert main(command) == 0, capsys.readouterr().err
    run = read_run(Path("run"))
    table = {"length": 0.1, "conf/r.py:f": {"weight": 0.5, "scale": 2}}
    assert run.config["reward"] == table
    assert {"reward/length", "reward/f"} <= run.metrics[0].keys()
    assert {path.name for path in Path("run/inputs/reward").rglob("*.py")} == {"r.py", "near.py"}
    assert "sha256:" in run.environment["inputs"]["reward"]

    Path("conf/near.py").write_text("def third(text):\n    return 0\n")
    assert main(["rl", "--resume", "run", "--steps", "2", "--quiet"]) == 2
    assert "what --reward reads changed" in capsys.readouterr().err
    shutil.move("run", second / "run")
    shutil.rmtree(first / "conf")
    monkeypatch.chdir(second)
    model_folder(Path("model"))
    shutil.copy(first / "tasks.jsonl", ".")
    assert main(["rl", "--resume", "run", "--steps", "2", "--model", "model", "--quiet"]) == 0, capsys.readouterr().err
    edited = Path("run/config.toml").read_text().replace("weight = 0.5", "weight = 0.7")
    Path("run/config.toml").write_text(edited)
    assert main(["rl", "--resume", "run", "--steps", "3", "--model", "model", "--quiet"]) == 2  # as a text would be
    assert "weight" in capsys.readouterr().err
    Path("conf.toml").write_text('reward = "python:__main__.score sha256:12"')
    assert main(["rl", "--config", "conf.toml", "--quiet"]) == 2
    assert "conf.toml: --reward was given from Python (python:__main__.score)" in capsys.readouterr().err
