"""Every example runs, with a model of a few thousand parameters, and does what its first lines say."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.rewards import RewardContext, apart, parse_rewards
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.types import Episode, EpisodeGroup, Message, Task
from tests.recipes.folders import model_folder
from tests.rewards.judges.test_pointwise import Says

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("models") / "model"))


@pytest.mark.parametrize(("words", "value"), [(1, 1.0), (40, 1.0), (60, 0.5), (80, 0.0), (200, 0.0)])
def test_the_reward_is_found_by_its_path_and_pays_for_short_answers(words, value):
    reward = parse_rewards(f"{EXAMPLES / 'reward.py'}:brief=0.2")
    episode = Episode(Task((Message("user", "Why?"),)), (Message("assistant", "word " * words),))
    ((scores,),) = asyncio.run(reward.score_parts(apart([episode])))
    (score,) = scores.values()
    assert score.value == value and reward.total(scores) == pytest.approx(0.2 * value)


def test_the_majority_of_a_group_is_paid_and_no_answer_is_not():
    reward = parse_rewards(f"{EXAMPLES / 'majority.py'}:majority tags=0.1")
    said = ["<answer>4</answer>", "<think>x</think> <answer>4</answer>", "<answer>5</answer>", "no idea"]
    task = Task((Message("user", "2 + 2?"),))
    episodes = tuple(Episode(task, (*task.prompt, Message("assistant", text))) for text in said)
    ((scores),) = asyncio.run(reward.score_parts([EpisodeGroup(task, episodes)]))
    assert [score["majority"].value for score in scores] == [1.0, 1.0, 0.0, 0.0]
    ((scores),) = asyncio.run(reward.score_parts([EpisodeGroup(task, episodes[3:] * 2)]))
    assert [score["majority"].value for score in scores] == [0.0, 0.0]
    assert reward.min_group == 2


def test_the_process_reward_pays_each_right_line_where_it_ends():
    reward = parse_rewards(f"{EXAMPLES / 'process_reward.py'}:right_lines=0.5")
    said = "First:\n2 + 3 = 5\n5 - 9 = 4\nso -4 is left\n5 - 9 = -4\n 1+1=3"
    task = Task((Message("user", "2 + 3 - 9?"),))
    ((scores,),) = asyncio.run(reward.score_parts(apart([Episode(task, (*task.prompt, Message("assistant", said)))])))
    (score,) = scores.values()
    paid = {said[span.start : span.end].strip(): span.value for span in score.spans}
    assert paid == {"2 + 3 = 5": 0.25, "5 - 9 = 4": 0.0, "5 - 9 = -4": 0.25, "1+1=3": 0.0}
    assert (score.value, score.total, reward.total(scores)) == (0.0, 0.5, 0.25)
    ((scores,),) = asyncio.run(reward.score_parts(apart([Episode(task, (*task.prompt, Message("assistant", "5")))])))
    assert reward.total(scores) == 0.0 and not reward.spans(scores)


@pytest.mark.parametrize(
    ("votes", "value"), [(["yes", "Yes.", "no"], 2 / 3), (["no", "no", "hm"], 0.0), (["hm", "?", ""], None)]
)
def test_the_critic_is_asked_for_three_votes(votes, value):
    reward = parse_rewards(f"{EXAMPLES / 'critic.py'}:polite")
    critic = Says(lambda asked, seed: votes[len(critic.asked) - 1])
    reward.give(RewardContext(0, {"critic": critic}))
    episode = Episode(Task((Message("user", "Why?"),)), (Message("assistant", 'Dear "you"'),))
    ((scores,),) = asyncio.run(reward.score_parts(apart([episode])))
    assert (scores["polite"].value if scores["polite"].applicable else None) == value
    assert len({seed for _, _, seed in critic.asked}) == 3
    assert all(asked.endswith(json.dumps('Dear "you"')) for asked, _, _ in critic.asked)


def test_ten_lines_train_and_evaluate(folder, tmp_path, capsys):
    options = {"max_new_tokens": 3, "precision": "float32"}
    accuracy = example("train").main(folder, steps=1, folder=tmp_path, **options)
    assert 0 <= accuracy <= 1
    assert (tmp_path / "train" / "checkpoints" / "step-000001" / "config.json").is_file()
    title, _, row, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("Held-out tasks: gym:chain_sum")
    assert "train (step-000001)  sampled" in row


RETRY = example("environment")
SUM = Task((Message("user", "2 + 3 ="),), answer="5", gold="It is 5.", id="sum")


@pytest.mark.parametrize(
    ("replies", "messages", "reward"),
    [(["5"], 2, 1.0), (["4", "It is 5."], 4, 0.5), (["4", "6"], 4, 0.0), (["", "5"], 4, 0.5)],
)
def test_the_environment_gives_a_second_chance_that_is_worth_half(replies, messages, reward):
    environment = RETRY.Retry()
    seat = ScriptedSeat(replies)
    outcome = asyncio.run(environment.play(SUM, {"policy": seat}, 0))
    assert len(seat.conversation) == messages
    assert (outcome.rewards, outcome.solved) == ({"policy": reward}, reward > 0)


def test_the_environment_conforms_and_plays(folder, capsys):
    check_environment(RETRY.Retry(), [SUM])
    assert 0 <= RETRY.main(folder, prompts=2, max_new_tokens=3) <= 1
    assert capsys.readouterr().out.startswith("the environment conforms\n")


def test_rlhf_runs_from_rankings_to_a_policy_on_a_tiny_model(folder, tmp_path):
    """Two steps, in a process of its own, from another directory; what people said is as its page says."""
    words = [sys.executable, str(EXAMPLES / "rlhf" / "rlhf.py"), "--model", folder, "--steps", "2"]
    done = subprocess.run([*words, "--output", str(tmp_path / "rlhf")], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "192 rankings of 64 prompts" in done.stdout and "My house is too hot." not in done.stderr
    assert "cleo agrees with the consensus in" in done.stdout and "useful" in done.stdout and "after:" in done.stdout
