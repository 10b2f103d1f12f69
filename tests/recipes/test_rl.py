"""Reinforcement learning with every online algorithm, on a model and a task that take no time."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain import algorithms
from posttrain.algorithms.algorithm import ActorCritic
from posttrain.algorithms.inputs import ProverValues, TeacherLogprobs, declared
from posttrain.bindings.cluster_options import ONE_PROCESS
from posttrain.episodes import episodes
from posttrain.episodes.sampler import Sampler
from posttrain.errors import UserError
from posttrain.recipes import online_preference, rl
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.rl import RL
from posttrain.rewards import TIME_LIMITS
from posttrain.runs import read_run
from posttrain.training import checkpoint


def config(folder: Path, **changes: Any) -> RL:
    common = {"prompts_per_step": 4, "completions_per_prompt": 4, "steps": 12, "max_new_tokens": 8}
    common |= {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "reward": f"{folder / 'scorer.py'}:score"}
    return RL(dataset=str(folder / "tasks.jsonl"), model=str(folder / "model"), **(common | changes))


KNOBS: dict[str, dict[str, Any]] = {
    "rloo": {"kl_coefficient": 0.0},  # paid for in nats of a whole completion, which outweigh this reward
    "remax": {"kl_coefficient": 0.0},
    "ppo": {"kl_coefficient": 0.0},
    "ppo-penalty": {"kl_coefficient": 1e-3, "kl_target": 10.0, "kl_gain": 1.0},
    "ppo-ptx": {"pretraining_coefficient": 0.05},
    "vapo": {"length_alpha": 1.0, "critic_warmup_steps": 1},
    "vineppo": {"step_tokens": 3, "continuations": 3},
    "rae": {"baseline_decay": 0.5},
    "pass-at-k": {"k": 2, "right_from": 0.4},
    "prime": {"prm_lr": 1e-3},
    "pav": {"step_tokens": 3, "continuations": 3, "kl_coefficient": 0.0},
    "opd": {"reward_coefficient": 20.0},  # its teacher is the policy before training, to which nothing else is better
    "gkd": {"reward_coefficient": 20.0},  # the same
}


def small(folder: Path, name: str, **changes: Any) -> RL:
    """Options for that algorithm on a task that takes no time."""
    text = {"pretraining_dataset": str(folder / "texts.jsonl")} if name == "ppo-ptx" else {}
    critic = {"critic_lr": 1e-2} if isinstance(algorithms.online(name)(), ActorCritic) else {}
    teacher = {"teacher": str(folder / "model")} if declared(algorithms.online(name)(), TeacherLogprobs) else {}
    prover = {"prover": str(folder / "model")} if declared(algorithms.online(name)(), ProverValues) else {}
    return config(folder, algorithm=name, **critic, **text, **teacher, **prover, **changes)


def train(options: RL, knobs: dict[str, Any] | None = None, **where: Any) -> Any:
    return rl.run(options, algorithms.online(options.algorithm)(**(knobs or {})), **{"quiet": True, **where})


def rows(run: Path) -> list[dict[str, Any]]:
    return read_run(run).metrics


@pytest.mark.parametrize("name", algorithms.ONLINE)
def test_every_algorithm_learns_to_please(name, folder, tmp_path):
    result = train(small(folder, name, steps=15), KNOBS.get(name), output=tmp_path / "run")
    rewards = [row["reward/mean"] for row in rows(result.run)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.1  # 0.26 to 0.91 over three seeds


def test_groups_that_are_scored_while_others_are_sampled_train_the_same_policy(folder, tmp_path, monkeypatch):
    original, batches = episodes._pipelined, []
    monkeypatch.setattr(episodes, "_pipelined", lambda *given: batches.append(len(given[1])) or original(*given))
    found = [
        [row["reward/mean"] for row in rows(train(config(folder, schedule=name), output=tmp_path / name).run)]
        for name in ("auto", "pipelined")
    ]
    assert found[0] == found[1] and len(set(found[0])) > 6
    assert batches == [4] * 12


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dapo", {}),
        ("rloo", {}),
        ("ppo-penalty", {"updates_per_step": 2}),
        ("ppo-penalty", {"critic": "own", "ref_sync_every": 1}),
        ("ppo-ptx", {}),
        ("vapo", {}),
        ("vineppo", {}),
        ("rae", {}),
        ("opd", {}),
        ("prime", {"updates_per_step": 2}),
        ("pav", {}),
        ("gkd", {}),
    ],
)
def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(name, changes, folder, tmp_path):
    options, knobs = small(folder, name, steps=4, save_every=1, keep_last=9, **changes), KNOBS.get(name)
    whole = train(options, knobs, output=tmp_path / "whole").run
    part = train(replace(options, steps=2), knobs, output=tmp_path / "part").run
    train(options, knobs, resume=part)
    timed = ("seconds/", "tokens_per_second", "memory_gb")
    curves = [[{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows(run)] for run in (whole, part)]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    states = [checkpoint.latest(run / "checkpoints") for run in (whole, part)]
    for file in sorted(states[0].path.glob("*.safetensors")):
        first, second = (checkpoint.load_tensors(found.path / file.name) for found in states)
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert states[0].state == states[1].state
    critic = (states[0].path / "critic-masters.safetensors").exists()
    assert critic == (name in ("ppo-penalty", "ppo-ptx", "vapo"))
    assert (states[0].path / "prm-masters.safetensors").exists() == (name == "prime")
    assert (states[0].path / "reference.safetensors").exists() == ("ref_sync_every" in changes)


def iterated(options: RL, rounds: int) -> OnlinePreference:
    """The same options for rounds of pairs."""
    common = {
        name: value for name, value in asdict(options).items() if name in {f.name for f in fields(OnlinePreference)}
    }
    return OnlinePreference(**common, rounds=rounds)


@pytest.mark.parametrize("name", ["rloo", "dpo"])
def test_a_resumed_run_knows_that_a_reward_went_past_1(name, folder, tmp_path):
    """From then on a score of 1 means no longer that a task is solved, and no accuracy is logged."""
    curves, states = [], []
    for kind in ("whole", "part"):
        file = tmp_path / f"{kind}.py"
        file.write_text(PAST_1)
        options: Any = config(folder, algorithm=name, steps=3, save_every=1, reward=f"{file}:score")
        if name == "dpo":
            options = iterated(options, 3)
        begin = rl.run if name == "rloo" else online_preference.run
        algorithm = (algorithms.online if name == "rloo" else algorithms.preference)(name)()
        one = replace(options, **{"steps" if name == "rloo" else "rounds": 1})
        run = begin(one if kind == "part" else options, algorithm, output=tmp_path / kind, quiet=True).run
        if kind == "part":
            begin(options, algorithm, resume=run, quiet=True)
        timed = ("seconds/", "tokens_per_second", "memory_gb")
        curves.append([{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows(run)])
        states.append(checkpoint.latest(run / "checkpoints").state)
    assert curves[0] == curves[1] and len(curves[0]) == 3 and not any("accuracy" in row for row in curves[0])
    assert states[0] == states[1] and states[0]["unbounded"] == {"score": 1.5}


PAST_1 = """
calls = []

def score(completions):
    calls.append(completions)
    early = [sum(letter in "abcdefghijklm" for letter in said) / max(1, len(said)) for said in completions]
    return [1.5 if len(calls) == 1 else share for share in early]
"""


@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_answers_on_which_a_time_limit_decided_are_kept_with_the_run_and_end_with_it(name, folder, tmp_path):
    (tmp_path / "limited.py").write_text(LIMITED)
    options: Any = config(folder, algorithm=name, steps=1, reward=f"{tmp_path / 'limited.py'}:score")
    if name == "dpo":
        options = iterated(options, 1)
    begin = rl.run if name == "grpo" else online_preference.run
    algorithm = (algorithms.online if name == "grpo" else algorithms.preference)(name)()
    try:
        run = begin(options, algorithm, output=tmp_path / "run", quiet=True).run
        kept = (run / "timeouts.jsonl").read_text()
        assert kept == '{"timed_out": "slow"}\n' and "slow" not in TIME_LIMITS.known
        TIME_LIMITS.add("of another command")
        assert (run / "timeouts.jsonl").read_text() == kept
        begin(replace(options, **{"steps" if name == "grpo" else "rounds": 2}), algorithm, resume=run, quiet=True)
        assert [row["reward/mean"] for row in rows(run)] == [0.0, 1.0]
    finally:
        TIME_LIMITS.keep_in(None)


LIMITED = """
from posttrain.rewards import TIME_LIMITS

def score(completions):
    known = "slow" in TIME_LIMITS.known
    TIME_LIMITS.add("slow")
    return [float(known)] * len(completions)
"""


@pytest.mark.parametrize(("name", "least", "most"), [("rloo", 1, 1), ("remax", 1.01, 2), ("vineppo", 1.5, 99)])
def test_the_pace_of_sampling_counts_what_is_not_learned_from(name, least, most, folder, tmp_path):
    """A greedy completion of each prompt, or completions that go on from states of the others."""
    first = rows(train(small(folder, name, steps=1), KNOBS.get(name), output=tmp_path / "run").run)[0]
    sampled = round(first["tokens_per_second"] * first["seconds/rollout"])
    assert least * first["tokens"] <= sampled <= most * first["tokens"]


def test_the_likelihood_of_the_reference_is_a_reward_and_groups_that_hardly_vary_are_filtered(folder, tmp_path):
    tasks = tmp_path / "answers.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": "ab"}) + "\n" for n in range(8)))
    options = replace(config(folder, reward="rlpr?before=A", steps=1, max_refills=1), dataset=str(tasks))
    found = rows(train(options, output=tmp_path / "all").run)[0]
    assert 0 < found["reward/rlpr"] < 1 and found["groups/kept"] == 4 and found["grad_norm"] > 0
    assert "accuracy" not in found
    some = rows(train(replace(options, min_reward_std=10.0), output=tmp_path / "none").run)[0]
    assert (some["groups/kept"], some["groups/thrown_away"], some["grad_norm"]) == (0, 8, 0.0)
    with pytest.raises(
        UserError, match="'rlpr' asks the policy, which cannot answer while it samples; leave out `schedule"
    ):
        train(replace(options, schedule="pipelined"), output=tmp_path / "refused")


def test_groups_that_teach_nothing_are_thrown_away_and_drawn_again(folder, tmp_path, monkeypatch):
    seen, drawn = [], []
    roll_out = Sampler.roll_out
    monkeypatch.setattr(
        Sampler, "roll_out", lambda self, draw, *a, **k: drawn.append(draw) or roll_out(self, draw, *a, **k)
    )
    monkeypatch.setattr(
        type(algorithms.online("dapo")()), "accepts", lambda self, rewards: seen.append(rewards) or len(seen) % 2 == 0
    )
    result = train(config(folder, algorithm="dapo", steps=2), output=tmp_path / "run")
    assert [row["groups/thrown_away"] for row in rows(result.run)] == [4, 4] and len(seen) == 16
    assert drawn == [0, 2]  # no draw comes twice
    assert checkpoint.latest(result.run / "checkpoints").state == {
        "draws": 4,
        "used_ahead": [],
        "adapted": {},
        "unbounded": {},
        "inputs": {},
        "curriculum": {},
    }
    seen.clear()
    monkeypatch.setattr(type(algorithms.online("dapo")()), "accepts", lambda self, rewards: False)
    result = train(config(folder, algorithm="dapo", steps=1, max_refills=2), output=tmp_path / "none")
    first = rows(result.run)[0]
    assert (first["groups/thrown_away"], first["groups/kept"], first["grad_norm"]) == (12, 0, 0.0)
    assert checkpoint.latest(result.run / "checkpoints").state == {
        "draws": 3,
        "used_ahead": [],
        "adapted": {},
        "unbounded": {},
        "inputs": {},
        "curriculum": {},
    }


def test_the_kl_in_the_reward_is_that_of_the_policy_before_training(folder, tmp_path):
    options = config(folder, algorithm="rloo", steps=3)
    found = [row["groups/kl"] for row in rows(train(options, {"kl_coefficient": 0.1}, output=tmp_path / "a").run)]
    assert found[0] == pytest.approx(0.0, abs=1e-4) and found[-1] > 0.01
    free = rows(train(options, {"kl_coefficient": 0.0}, output=tmp_path / "b").run)
    assert "groups/kl" not in free[0]


def test_a_kind_of_prompt_is_a_field_of_the_task(folder, tmp_path):
    found = rows(train(config(folder, algorithm="grpo-bucketed", steps=1), output=tmp_path / "run").run)
    assert found[0]["groups/kinds"] == 2.0


def test_a_group_of_one_is_enough_where_nothing_is_compared_within_it(folder, tmp_path):
    for name in ("reinforce", "remax", "reinforce++", "grpo-bucketed", "rae", "opd", "gkd"):
        options = small(folder, name, steps=1, completions_per_prompt=1)
        assert train(options, output=tmp_path / name.replace("+", "p")).steps == 1
    for name in ("rloo", "grpo", "dr-grpo", "dapo", "gspo"):
        with pytest.raises(UserError, match="needs 2 or more of them; got 1"):
            train(config(folder, algorithm=name, completions_per_prompt=1), output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_coefficient_that_is_steered_is_logged_and_moves(folder, tmp_path):
    options = small(folder, "ppo-penalty", steps=6)
    run = train(options, {"kl_coefficient": 0.1, "kl_target": 0.01, "kl_gain": 1.0}, output=tmp_path / "run").run
    found = [row["groups/kl_coefficient"] for row in rows(run)]
    kls = [row["groups/kl"] for row in rows(run)]
    for before, after, kl in zip(found, found[1:], kls, strict=False):
        assert after == pytest.approx(before * (1 + min(max(kl / 0.01 - 1, -0.2), 0.2)))
    assert max(kls) > 0.01 and found[-1] > found[1]


def test_while_the_critic_warms_up_the_policy_stays(folder, tmp_path):
    options = small(folder, "vapo", steps=3, save_every=1, keep_last=9)
    run = train(options, {"critic_warmup_steps": 2, "length_alpha": 1.0}, output=tmp_path / "run").run
    at = [checkpoint.load_tensors(run / f"checkpoints/step-{n:06d}/masters.safetensors") for n in (1, 2, 3)]
    assert all(torch.equal(at[0][name], at[1][name]) for name in at[0])
    assert any(not torch.equal(at[1][name], at[2][name]) for name in at[0])
    critic = [checkpoint.load_tensors(run / f"checkpoints/step-{n:06d}/critic-masters.safetensors") for n in (1, 2)]
    assert not torch.equal(critic[0]["head.weight"], critic[1]["head.weight"])
    found = rows(run)
    assert "ratio/mean" not in found[1] and found[2]["ratio/mean"] == 1.0


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_reference_that_is_renewed_is_the_policy_of_then(lora_rank, folder, tmp_path):
    if lora_rank:
        pytest.importorskip("peft")
    knobs, options = {"kl_coefficient": 0.1}, small(folder, "rloo", steps=4, lora_rank=lora_rank)
    fixed = rows(train(options, knobs, output=tmp_path / "a").run)
    renewed = rows(train(replace(options, ref_sync_every=2), knobs, output=tmp_path / "b").run)
    assert [row["groups/kl"] for row in fixed[:2]] == [row["groups/kl"] for row in renewed[:2]]
    assert fixed[1]["groups/kl"] > 1e-3 and fixed[2]["groups/kl"] > 1e-3
    assert renewed[2]["groups/kl"] == pytest.approx(0.0, abs=1e-5)  # what was just sampled is the reference's own


def test_text_is_learned_beside(folder, tmp_path):
    found = rows(train(small(folder, "ppo-ptx", steps=8), KNOBS["ppo-ptx"], output=tmp_path / "run").run)
    assert found[-1]["pretraining_loss"] < found[0]["pretraining_loss"] - 0.1
    with pytest.raises(UserError, match="ppo-ptx needs a pretraining corpus; pass `pretraining_dataset`"):
        train(config(folder, algorithm="ppo-ptx"), output=tmp_path / "refused")
    with pytest.raises(UserError, match="grpo has no pretraining loss; leave out `pretraining_dataset`"):
        train(config(folder, algorithm="grpo", pretraining_dataset="x"), output=tmp_path / "refused")


def test_the_penalty_is_taken_before_groups_are_thrown_away(folder, tmp_path, monkeypatch):
    seen = []
    kind = type(algorithms.online("dapo")())
    monkeypatch.setattr(kind, "accepts", lambda self, rewards: seen.append(rewards) or True)
    options = config(folder, algorithm="dapo", steps=1, length_penalty=0.5, max_refills=0)
    first = rows(train(options, output=tmp_path / "run").run)[0]
    learned = torch.stack(seen).mean().item()
    assert learned < first["reward/mean"] - 0.05  # what is reported is what was earned


def test_the_learning_rate_begins_when_the_policy_does(folder, tmp_path):
    options = small(folder, "vapo", steps=4, warmup_steps=0, decay="linear")
    run = train(options, {"critic_warmup_steps": 2, "length_alpha": 1.0}, output=tmp_path / "run").run
    assert [row["lr"] for row in rows(run)[2:]] == pytest.approx([1e-2, 5e-3])
    steered = small(folder, "ppo-penalty", steps=4)
    knobs = {"critic_warmup_steps": 3, "kl_coefficient": 0.1}
    found = [row["groups/kl_coefficient"] for row in rows(train(steered, knobs, output=tmp_path / "kl").run)]
    assert found == [0.1] * 4  # nothing is steered while the policy stays


def test_text_that_cannot_be_learned_is_refused(folder, tmp_path):
    (tmp_path / "short.jsonl").write_text('{"text": "a"}\n')
    options = replace(small(folder, "ppo-ptx"), pretraining_dataset=str(tmp_path / "short.jsonl"))
    with pytest.raises(UserError, match="two words or more"):
        train(options, output=tmp_path / "refused")


def test_gdpo_reads_each_reward_by_name(folder, tmp_path):
    """Scaling a reward changes nothing where each is normalised by itself; GRPO's sum is another one."""
    (tmp_path / "two.py").write_text(
        "def some(completion): return len(set(completion)) / 9\n"
        "def more(completion): return 100 * some(completion)\n"
        "def long(completion): return len(completion) / 9\n"
    )
    found = {}
    for name, first in (("gdpo", "some"), ("gdpo", "more"), ("grpo", "some"), ("grpo", "more")):
        reward = f"{tmp_path}/two.py:{first} {tmp_path}/two.py:long=0.5"
        options = config(folder, algorithm=name, reward=reward, steps=2)
        run = train(options, {"std_epsilon": 0.0, "kl_coefficient": 0.0}, output=tmp_path / f"{name}-{first}").run
        found[name, first] = rows(run)[1]["reward/long"], rows(run)[0]["grad_norm"]
    assert found["gdpo", "some"] == pytest.approx(found["gdpo", "more"], rel=1e-4)
    assert found["grpo", "some"][1] != pytest.approx(found["grpo", "more"][1], rel=1e-2)


def test_a_token_is_weighed_by_policy_over_sampler(folder, tmp_path):
    first = rows(train(config(folder, steps=1, tis_cap=2.0), output=tmp_path / "run").run)[0]
    assert first["importance/mean"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"critic": "trnk"}, "unknown critic 'trnk'"),
        ({"critic_lr": 0.0}, "`critic_lr` must be above 0"),
        ({"updates_per_step": 0}, "`updates_per_step` must be 1 or more"),
        ({"pretraining_per_step": 0}, "`pretraining_per_step` must be 1 or more"),
        ({"tis_cap": -1.0}, "`tis_cap` must be 0 or more"),
        ({"importance": "masked"}, "importance weights; pass `tis_cap=2` too"),
        ({"importance_level": "mean", "tis_cap": 0.0}, "importance weights; pass `tis_cap=2` too"),
        ({"importance_level": "turn"}, "unknown importance_level 'turn'|`importance_level`"),
        ({"importance_floor": 3.0, "tis_cap": 2.0}, "`importance_floor` is at most `tis_cap`, 2; got 3"),
        ({"algorithm": "dppo", "tis_cap": 2.0}, "dppo compares with the sampler itself; leave out `tis_cap`"),
        ({"algorithm": "dppo", "importance": "masked"}, "importance weights; pass `tis_cap=2` too"),
        ({"algorithm": "gdpo", "length_penalty": 0.1}, "the baseline of gdpo has no length penalty"),
        ({"algorithm": "pass-at-k", "completions_per_prompt": 2}, "needs 4 or more of them; got 2"),
        ({"length_penalty": float("nan")}, "`length_penalty` must be 0 or more"),
        ({"ref_sync_every": -1}, "`ref_sync_every` must be 0 or more"),
        ({"max_refills": -1}, "`max_refills` must be 0 or more"),
        ({"critic": "own"}, "grpo has no critic; leave out `critic`"),
        ({"critic_lr": 1e-3}, "grpo has no critic; leave out `critic`"),
        ({"algorithm": "dapo", "ref_sync_every": 1}, "dapo has no reference model with these hyperparameters"),
        ({"algorithm": "remax", "length_penalty": 0.1}, "the baseline of remax has no length penalty"),
        ({"algorithm": "vineppo", "length_penalty": 0.1}, "the baseline of vineppo has no length penalty"),
        ({"algorithm": "opd"}, "opd needs a teacher; pass `teacher`"),
        ({"teacher": "OWNER/NAME"}, "grpo has no teacher with these hyperparameters; leave out `teacher`, or type"),
        ({"algorithm": "pav"}, "pav needs a prover; pass `prover`, another model with the policy's tokenizer"),
        ({"prover": "OWNER/NAME"}, "grpo has no prover; leave out `prover`, or type `algorithm=.pav.`"),
        ({"algorithm": "prime", "critic_lr": 1e-3}, "prime has no critic; leave out `critic` and `critic_lr`"),
        (
            {"algorithm": "vapo", "steps": 50},
            "critic warmup covers all 50 steps, so the policy is never updated; type `steps` above 50",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused(changes, what, folder, tmp_path):
    with pytest.raises(UserError, match=what):
        train(config(folder, **changes), output=tmp_path / "refused")


VOTE = """
from posttrain.rewards import reward_function

@reward_function(bounds=(0, 1), min_group=3)
def vote(group, completions):
    return [float(completions.count(each) > 1) for each in completions]
"""


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"completions_per_prompt": 2}, "`completions_per_prompt` gives 2"),
        ({"eval_every": 1, "eval_samples": 1}, "`eval_samples` gives 1"),
        ({"algorithm": "remax"}, "the most likely one, which remax compares with, gives 1"),
        ({"algorithm": "vineppo", "knobs": {"continuations": 2}}, "`continuations` gives 2"),
    ],
)
def test_groups_that_a_reward_could_not_compare_are_refused_before_anything_is_sampled(changes, what, folder, tmp_path):
    (tmp_path / "vote.py").write_text(VOTE)
    knobs = changes.pop("knobs", {})
    options = config(folder, reward=f"{tmp_path / 'vote.py'}:vote", **({"completions_per_prompt": 3} | changes))
    if options.eval_every:
        (tmp_path / "held.jsonl").write_text('{"prompt": "held out?", "answer": ""}\n')
        options = replace(options, eval_dataset=str(tmp_path / "held.jsonl"))
    with pytest.raises(UserError, match=what):
        train(options, knobs, output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_reward_that_compares_trains(folder, tmp_path):
    (tmp_path / "vote.py").write_text(VOTE)
    options = config(folder, reward=f"{tmp_path / 'vote.py'}:vote", completions_per_prompt=3, steps=1)
    assert "reward/vote" in rows(train(options, output=tmp_path / "run").run)[0]


@pytest.mark.parametrize(("critic", "networks"), [("trunk", 1), ("own", 2)])
def test_with_an_adapter_policy_reference_and_critic_are_one_network_or_two(critic, networks, folder):
    pytest.importorskip("peft")
    parts = rl._prepare(small(folder, "ppo", lora_rank=2, critic=critic), algorithms.online("ppo")(), ONE_PROCESS, {})
    learner = parts.setup.backend.learner
    reference, of_critic = learner._references["reference"], learner._beside["critic"]
    held = (learner.body, reference.body, of_critic.body)
    assert len({id(model.network) for model in held}) == networks
    weights = {p.untyped_storage().data_ptr(): p.numel() for model in held for p in model.network.parameters()}
    one = sum(p.numel() for p in {id(p): p for p in held[0].network.parameters()}.values())
    assert sum(weights.values()) == networks * one


SPANS = """
from posttrain.types import Score, Span

def early(completion):
    \"\"\"The share of its letters that come early in the alphabet, paid at each of them.\"\"\"
    right = [letter.lower() in "abcdefghijklm" for letter in completion]
    return Score(0.0, spans=tuple(Span(0, i, i + 1, yes / len(right)) for i, yes in enumerate(right)))
"""


@pytest.mark.parametrize("name", ["grpo", "ppo", "vapo"])
def test_process_rewards_change_what_is_learned_and_not_what_is_earned(name, folder, tmp_path):
    """In the first step the same is sampled; from then on another policy samples."""
    (tmp_path / "spans.py").write_text(SPANS)
    runs = {}
    for kind, process in (("spans", True), ("spans", False), ("plain", True)):
        reward = f"{tmp_path / 'spans.py'}:early" if kind == "spans" else f"{folder / 'scorer.py'}:score"
        options = small(folder, name, steps=3, reward=reward)
        knobs = {**KNOBS.get(name, {}), "process_rewards": process}
        runs[kind, process] = rows(train(options, knobs, output=tmp_path / f"{kind}-{process}").run)
    on, off, plain = runs.values()
    assert on[0]["reward/mean"] == off[0]["reward/mean"] == pytest.approx(plain[0]["reward/mean"])
    assert on[0]["reward/early"] == on[0]["reward/mean"] > 0
    assert on[1]["reward/mean"] != off[1]["reward/mean"] or on[2]["reward/mean"] != off[2]["reward/mean"]
    assert [row["reward/mean"] for row in off] == pytest.approx([row["reward/mean"] for row in plain])
    if name == "grpo":
        assert on[0]["groups/steps"] > 1 and plain[0]["groups/steps"] == 0


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_with_process_rewards_a_policy_learns_to_please(name, folder, tmp_path):
    (tmp_path / "spans.py").write_text(SPANS)
    options = small(folder, name, steps=15, reward=f"{tmp_path / 'spans.py'}:early")
    result = train(options, {**KNOBS.get(name, {}), "process_rewards": True}, output=tmp_path / "run")
    rewards = [row["reward/mean"] for row in rows(result.run)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.1
