"""Pipelines as they are read: what references mean, and that a mistake is one line before anything runs."""

import json
import re
import shlex
from pathlib import Path

import pytest

from posttrain.commands import COMMANDS, sections_of
from posttrain.errors import UserError
from posttrain.options.hyperparameters import field_docstrings
from posttrain.options.tools import Pipeline
from posttrain.pipelines.reading import read_stages, shipped
from posttrain.pipelines.stages import Known

KNOWN = Known(COMMANDS, sections_of)
MODEL = '[with]\nmodel = "base/model"\nsteps = 4\nsums = "gym:chain_sum"\n'
COLD = '[[stage]]\nname = "cold"\nrun = "sft"\nmodel = "${model}"\ndataset = "rows.jsonl"\n'
KEPT = '[[stage]]\nname = "kept"\nrun = "best-of-n"\nmodel = "${cold}"\ndataset = "${sums}"\nreward = "gym"\n'
AGAIN = '[[stage]]\nname = "again"\nrun = "sft"\nmodel = "${model}"\n'


@pytest.fixture
def read(tmp_path, monkeypatch):
    """The stages of a text as a file with two files of rows beside it; and the options of one below /runs/p."""
    (tmp_path / "in here").mkdir()
    for name in ("rows", "general"):
        (tmp_path / "in here" / f"{name}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    monkeypatch.chdir(tmp_path)

    def read(text, *typed):
        (tmp_path / "in here" / "p.toml").write_text(text)
        return read_stages("in here/p.toml", typed, KNOWN)

    return read


def options(stages, name, root="/runs/p"):
    return stages.options(stages.by_name[name], Path(root))


def test_references_are_paths_values_and_further_outputs(read, tmp_path):
    rest = AGAIN + 'dataset = {"${kept}" = 0.75, "general.jsonl" = 0.25}\nsteps = "${steps}"\n'
    rest += '[[stage]]\nname = "dpo"\nrun = "preference"\nmodel = "${again}"\ndataset = "${kept.pairs}"\n'
    rest += "[stage.knobs]\nbeta = 0.3\n"
    stages = read(MODEL + COLD + KEPT + rest, "steps=7", "model=other")
    there = tmp_path / "in here"
    assert options(stages, "cold") == {"model": "other", "dataset": str(there / "rows.jsonl")}
    assert options(stages, "kept") == {
        "output": "/runs/p/kept/output.jsonl",
        "pairs": "/runs/p/kept/pairs.jsonl",
        "model": "/runs/p/cold",
        "dataset": "gym:chain_sum",
        "reward": "gym",
    }
    again = options(stages, "again")
    assert shlex.split(again.pop("dataset")) == ["/runs/p/kept/output.jsonl=0.75", f"{there}/general.jsonl=0.25"]
    assert again == {"model": "other", "steps": 7}
    dpo = {"model": "/runs/p/again", "dataset": "/runs/p/kept/pairs.jsonl", "knobs": {"beta": 0.3}}
    assert options(stages, "dpo") == dpo
    assert [(one.name, one.needs) for one in stages.by_name.values()] == [
        ("cold", ()),
        ("kept", ("cold",)),
        ("again", ("kept",)),
        ("dpo", ("again", "kept")),
    ]


def test_one_seed_is_that_of_all_stages_which_set_none_but_not_of_evaluations(read):
    text = MODEL + '[evaluate]\ndataset = "${sums}"\nreward = "gym"\n' + COLD + KEPT
    text += AGAIN + 'dataset = "${kept}"\nseed = 7\n'

    def seeds(*typed):
        return {name: one.table["seed"] for name, one in read(text, *typed).by_name.items() if "seed" in one.table}

    assert seeds() == {"again": 7}
    assert seeds("seed=3") == {"cold": 3, "kept": 3, "again": 7}


def test_paths_in_options_of_words_are_quoted(read):
    text = MODEL + '[[stage]]\nname = "rm"\nrun = "reward-model"\ndataset = "rows.jsonl"\n'
    text += '[[stage]]\nname = "rl"\nrun = "rl"\nreward_model = "${rm}"\nmodel = "${model}"\ndataset = "${sums}"\n'
    assert options(read(text), "rl", "/my runs")["reward_model"] == "'/my runs/rm'"


def test_a_repeat_is_unrolled_and_before_is_the_last_policy(read):
    text = MODEL + COLD + '[[stage]]\nrepeat = 2\nbefore = "${cold}"\n'
    text += (
        '[[stage.stage]]\nname = "kept"\nrun = "best-of-n"\nmodel = "${before}"\ndataset = "${sums}"\nreward = "gym"\n'
    )
    text += '[[stage.stage]]\nname = "sft"\nrun = "sft"\nmodel = "${before}"\ndataset = "${kept}"\n'
    text += '[[stage]]\nname = "mean"\nrun = "export average"\nmodels = "${sft-1} ${sft}"\n'
    stages = read(text)
    assert [*stages.by_name] == ["cold", "kept-1", "sft-1", "kept-2", "sft-2", "mean"]
    assert [options(stages, name)["model"] for name in ("kept-1", "sft-1", "kept-2", "sft-2")] == [
        "/runs/p/cold",
        "/runs/p/cold",
        "/runs/p/sft-1",
        "/runs/p/sft-1",
    ]
    assert options(stages, "sft-2")["dataset"] == "/runs/p/kept-2/output.jsonl"
    assert options(stages, "mean") == {"models": "/runs/p/sft-1 /runs/p/sft-2", "output": "/runs/p/mean/output"}
    alone = read(
        MODEL + AGAIN.replace("${model}", "${before}") + 'dataset = "rows.jsonl"\nrepeat = 3\nbefore = "${model}"\n'
    )
    assert [options(alone, name)["model"] for name in alone.by_name] == [
        "base/model",
        "/runs/p/again-1",
        "/runs/p/again-2",
    ]


def test_each_policy_is_evaluated_and_an_evaluation_takes_the_same_options(read):
    evaluate = '[evaluate]\ndataset = "${sums}"\nlimit = 9\n'
    first = '[[stage]]\nname = "start"\nrun = "evaluate"\nmodel = "${model}"\n'
    stages = read(MODEL + evaluate + first + COLD + KEPT)
    assert [*stages.by_name] == ["start", "cold", "cold.evaluate", "kept"]
    assert options(stages, "start") == {"dataset": "gym:chain_sum", "limit": 9, "model": "base/model"}
    assert options(stages, "cold.evaluate") == {"dataset": "gym:chain_sum", "limit": 9, "model": "/runs/p/cold"}


def test_digests_change_with_options_files_and_the_stages_before(read, tmp_path):
    text = MODEL + COLD + KEPT
    before = read(text).by_name
    assert read(text + "# a remark").by_name == before
    slower = read(text, "sums=gym:gcd").by_name
    assert slower["cold"].digest == before["cold"].digest and slower["kept"].own != before["kept"].own
    (tmp_path / "in here" / "rows.jsonl").write_text('{"prompt": "a", "completion": "c"}\n')
    after = read(text).by_name
    assert after["cold"].own != before["cold"].own
    assert after["kept"].own == before["kept"].own and after["kept"].digest != before["kept"].digest
    asked = read(text + AGAIN + 'dataset = "${kept.pairs}"\n').by_name
    assert asked["kept"].own != after["kept"].own  # it has to write one more file


ASKED = '[[stage]]\nname = "asked"\nrun = "annotate import"\nproject = "p"\ndataset = "${kept.annotation_items}"\n'
ANSWERS = '[[stage]]\nname = "answers"\nrun = "annotate export"\nproject = "p"\nwait = 1.0\nafter = "${asked}"\n'


def test_a_stage_comes_after_one_of_which_it_reads_no_file_and_may_wait_for_less(read):
    before = read(MODEL + COLD + KEPT + ASKED + ANSWERS)
    assert before.by_name["answers"].needs == ("asked",)
    assert options(before, "answers") == {"project": "p", "wait": 1.0, "output": "/runs/p/answers/output.jsonl"}
    other = read(MODEL + COLD + KEPT + ASKED + ANSWERS, "sums=gym:gcd").by_name
    assert other["answers"].own == before.by_name["answers"].own
    assert other["answers"].digest != before.by_name["answers"].digest
    assert read(MODEL + COLD + KEPT + ASKED + ANSWERS.replace("1.0", "0.5")).by_name["answers"].digest == (
        before.by_name["answers"].digest
    )


def test_a_constitution_and_a_prompt_are_looked_up_beside_the_file_and_are_part_of_the_digest(read, tmp_path):
    for name in ("mine.toml", "mine.txt"):
        (tmp_path / "in here" / name).write_text("a")
    text = '[[stage]]\nname = "said"\nrun = "judge"\ndataset = "rows.jsonl"\njudge = { a = "base/model" }\n'
    text += 'constitution = "mine.toml"\njudge_prompt = "mine.txt"\n'
    before = read(text)
    found = options(before, "said")
    assert found["constitution"] == str(tmp_path / "in here" / "mine.toml")
    assert found["judge_prompt"] == shlex.quote(str(tmp_path / "in here" / "mine.txt"))  # words: NAME=FILE, too
    (tmp_path / "in here" / "mine.toml").write_text("b")
    assert read(text).by_name["said"].own != before.by_name["said"].own


WRONG = {
    "an option": (COLD + "lrr = 1\n", "unknown key in stage 'cold' of FILE: 'lrr'; did you mean 'lr'"),
    "a value": (COLD + "lr = -1.0\n", "stage 'cold' of FILE: `lr` must be 0 or more; got -1.0"),
    "a kind": (COLD + 'lr = "${model}"\n', "stage 'cold' of FILE: 'lr' must be a number; got 'base/model'"),
    "a knob": (
        COLD.replace('"sft"', '"rl"') + "[stage.knobs]\nbetaa = 1\n",
        "unknown key in stage 'cold' of FILE, table [knobs]: 'betaa'",
    ),
    "an algorithm": (COLD.replace('"sft"', '"rl"') + 'algorithm = "grop"\n', "stage 'cold' of FILE: unknown algorithm"),
    "a command": (COLD.replace('"sft"', '"sftt"'), "unknown command in stage 'cold' of FILE: 'sftt'; did you mean"),
    "no stage's command": (COLD.replace('"sft"', '"generate"'), "unknown command in stage 'cold' of FILE: 'generate'"),
    "no command": (COLD.replace("run", "#"), "unknown command in stage 'cold' of FILE: 'None'"),
    "a reference": (
        COLD + AGAIN + 'dataset = "${colt}"\n',
        "unknown name in stage 'again' of FILE: 'colt'; did you mean",
    ),
    "an output": (
        COLD + KEPT + AGAIN + 'dataset = "${kept.pear}"\n',
        "unknown output of stage 'kept' in stage 'again' of FILE: 'pear'; did you mean 'pairs'",
    ),
    "one that comes later": (
        AGAIN + 'dataset = "${kept}"\n' + COLD + KEPT,
        "FILE: stage 'again' names ${kept}, which comes after it; move 'kept' up",
    ),
    "a circle": (
        COLD.replace("rows.jsonl", "${kept}") + KEPT,
        "FILE: stages name each other in a circle: cold -> kept -> cold; one must begin without",
    ),
    "itself": (COLD.replace("rows.jsonl", "${cold}"), "FILE: stages name each other in a circle: cold -> cold"),
    "a name twice": (COLD + COLD, "FILE: two stages are called 'cold'"),
    "a name of a value": (COLD.replace('"cold"', '"model"'), "got 'model'; it is a value of [with]"),
    "a name of a path": (COLD.replace('"cold"', '"../cold"'), "FILE: a stage needs a name of letters, digits, _ and -"),
    "an output directory": (COLD + 'output = "x"\n', "a pipeline writes into its own directory; leave out 'output'"),
    "a file": (COLD.replace("rows", "rose"), "FILE: `dataset` names rose.jsonl, which is neither beside that file"),
    "no stage": ("", "FILE has no stage; one is a table [[stage]]"),
    "a table": ("[stages]\n", "unknown key in FILE: 'stages'; did you mean 'stage'"),
    "one stage": ('[stage]\nname = "cold"\n', "FILE: 'stage' must be tables, [[stage]]; got"),
    "a list of names": ('stage = ["cold"]\n', "FILE: 'stage' must be tables, [[stage]]; got"),
    "before without a repeat": (COLD.replace("${model}", "${before}"), "needs a repeat with before = "),
    "after no stage": (
        COLD + 'after = "cold"\n',
        "stage 'cold' of FILE: 'after' names stages, such as after = \"${asked}\"; got 'cold'",
    ),
    "no rounds": (COLD + "repeat = 0\n", "FILE: repeat must be a whole number of 1 or more; got 0"),
    "an option of a repeat": (
        '[[stage]]\nrepeat = 2\nlr = 1.0\n[[stage.stage]]\nname = "a"\nrun = "sft"\n',
        "FILE: 'lr' belongs into a [[stage.stage]] of the repeat",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_said_before_anything_runs(read, tmp_path, wrong):
    text, says = WRONG[wrong]
    with pytest.raises(UserError) as raised:
        read(text if text.startswith("stage =") else MODEL + text)
    said = str(raised.value).replace(str(tmp_path / "in here" / "p.toml"), "FILE")
    assert says in said and "\n" not in said


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("modl=x", "unknown value in --with: 'modl'; did you mean 'model'"),
        ("model", "--with takes NAME=VALUE, such as model=OWNER/NAME; got 'model'"),
        ("sums=${steps} ${sums}", "values of [with] name each other in a circle: sums -> sums"),
        ("sums=${stepps}", "unknown value in [with] of"),
    ],
)
def test_a_wrong_value_is_said(read, typed, says):
    with pytest.raises(UserError, match=re.escape(says)):
        read(MODEL + COLD, typed)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_pipeline_is_right(name):
    stages = read_stages(name, (), KNOWN)
    lines = stages.origin.read_text(encoding="utf-8").splitlines()
    assert stages.title and len(stages.by_name) > 1 and "arXiv" in lines[0] and max(map(len, lines)) <= 120
    assert re.search(rf"[ \n]{name}[,. ]", field_docstrings(Pipeline)["file"]), "the help of FILE names all of them"


def test_a_pipeline_that_is_no_file_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no pipeline 'r2'; name a TOML file, or one of those shipped: "):
        read_stages("r2", (), KNOWN)
    (tmp_path / "a.toml").write_text("title = ")
    with pytest.raises(UserError, match="is not TOML"):
        read_stages(str(tmp_path / "a.toml"), (), KNOWN)


def test_options_go_through_toml_and_json(read):
    stages = read(MODEL + COLD)
    assert json.loads(json.dumps(options(stages, "cold"))) == options(stages, "cold")
