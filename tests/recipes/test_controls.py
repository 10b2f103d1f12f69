"""`--reward-control shuffled`: the run learns nothing, logs what is true, says what it is, and resumes to the same."""

import json
from dataclasses import replace

import pytest

from posttrain.errors import UserError
from posttrain.recipes import reward_model, sft
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.sft import SFT
from posttrain.runs import config_file, read_run
from tests.recipes.test_rl import config, small, train

TIMED = ("seconds/", "tokens_per_second", "memory_gb")


def curve(run):
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read_run(run).metrics]


def test_a_control_learns_nothing_and_logs_true_rewards(folder, tmp_path, capsys):
    options = small(folder, "grpo", steps=15)
    true = curve(train(options, output=tmp_path / "true").run)
    run = train(replace(options, reward_control="shuffled"), output=tmp_path / "control", quiet=False).run
    found = curve(run)
    assert true[0]["reward/mean"] == found[0]["reward/mean"] and true[0]["grad_norm"] != found[0]["grad_norm"]
    gains = [sum(row["reward/mean"] for row in rows[-3:]) / 3 - rows[0]["reward/mean"] for rows in (true, found)]
    assert gains[0] > 0.2 and gains[1] < gains[0] / 2
    for row in read_run(run).samples:  # of every completion that is shown its own score
        assert row["reward"] == row["rewards"]["score"]
    assert "control (control: shuffled labels)</h1>" in (run / "report.html").read_text()
    assert "this is a control, and no result" in " ".join(capsys.readouterr().err.split())


def test_a_control_that_is_resumed_equals_one_that_was_not_stopped(folder, tmp_path):
    options = config(folder, steps=4, save_every=1, reward_control="shuffled")
    whole = train(options, output=tmp_path / "whole").run
    part = train(replace(options, steps=2), output=tmp_path / "part").run
    train(options, resume=part)
    assert curve(whole) == curve(part)
    with pytest.raises(UserError, match="reward_control"):
        train(replace(options, reward_control="", steps=5), resume=part)


def test_runs_of_earlier_versions_have_no_control():
    for told in ("max_refills", "train_on", "ensemble"):
        assert config_file.renamed({told: 1})["reward_control"] == ""


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("vineppo", {}, "vineppo also learns from"),
        ("opd", {}, "opd also learns from"),
        ("reinforce", {"completions_per_prompt": 1}, "type `completions_per_prompt=2` or more"),
    ],
)
def test_a_control_that_could_learn_or_cannot_shuffle_is_refused(name, changes, says, folder, tmp_path):
    with pytest.raises(UserError, match=says):
        train(small(folder, name, reward_control="shuffled", **changes), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_demonstrations_of_a_control_have_the_answers_of_others(tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(20)])
    own, found = (sft._read(SFT(data, eval_share=0.2, reward_control=name)) for name in ("", "shuffled"))
    assert own.heldout == found.heldout and own.learned != found.learned
    assert [one[0] for one in own.learned] == [one[0] for one in found.learned]
    assert {one[1] for one in own.learned} == {one[1] for one in found.learned}
    assert "no result: shuffled are the answers" in found.notes[-1] and own.notes == found.notes[:-1]


def test_pairs_of_a_control_are_swapped_and_held_out_ones_are_not(tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"prompt": f"{i}", "chosen": "yes", "rejected": "no"} for i in range(20)])
    found = reward_model._heads(Scoring(data, eval_share=0.2, reward_control="shuffled"), sft.ONE_PROCESS)._sides
    assert {pair.chosen for (pair,) in found.learned} == {"yes", "no"}
    assert {pair.chosen for (pair,) in found.heldout} == {"yes"}
    assert "which of a pair was chosen" in found.notes[-1]
    with pytest.raises(UserError, match="`reward_control` is for `heads` preference"):
        reward_model._heads(Scoring(data, heads="steps", reward_control="shuffled"), sft.ONE_PROCESS)
