"""How judges join the rewards that are typed."""

import asyncio

import pytest

from posttrain.environments.scored import judged
from posttrain.errors import UserError
from posttrain.rewards import RewardContext, apart
from posttrain.types import Sampling
from tests.rewards.episodes import episode
from tests.rewards.judges.test_pointwise import Says

ASKS = """
async def court(completion, reward_context):
    assert reward_context.seed == 3
    return float(len(reward_context.judges))
"""


@pytest.fixture
def models():
    return {name: Says(lambda asked, seed: "Score: 5") for name in ("kind", "brief")}


def test_a_judge_has_weight_1_unless_it_is_named(models):
    rewards, gold, notes = judged("numbers brief=0.5", judges=models)
    assert rewards.weights == {"numbers": 1.0, "brief": 0.5, "kind": 1.0} and gold is None and notes == ()
    rewards, gold, _ = judged("", judges=models)
    assert rewards.weights == {"kind": 1.0, "brief": 1.0}
    assert judged("", judges={}) == (None, None, ())


def test_a_judge_that_gold_names_is_read_and_not_learned_from(models):
    rewards, gold, _ = judged("numbers", "kind=2", judges=models)
    assert rewards.weights == {"numbers": 1.0, "brief": 1.0} and gold.weights == {"kind": 2.0}
    rewards, gold, _ = judged("kind", "kind brief", judges=models)
    assert rewards.weights == {"kind": 1.0} and gold.weights == {"kind": 1.0, "brief": 1.0}
    assert judged("", "kind brief", judges=models).rewards is None


def test_judges_are_left_to_a_function_that_asks(models, tmp_path):
    (tmp_path / "mine.py").write_text(ASKS)
    path = f"{tmp_path / 'mine.py'}:court"
    rewards, _, notes = judged(f"{path} brief=0.5", judges=models, seed=3)
    assert rewards.weights == {"court": 1.0, "brief": 0.5}
    assert notes == ("judge 'kind' is no reward of its own: 'court' may ask it",)
    (((scores),),) = asyncio.run(rewards.score_parts(apart([episode("a")])))
    assert scores["court"].value == 2.0 and scores["brief"].value == 0.5
    rewards, gold, notes = judged("numbers", path, judges=models, seed=3)  # gold asks, too
    assert rewards.weights == {"numbers": 1.0} and len(notes) == 2
    assert gold.parts[0][0].context == [RewardContext(3, models)]


def test_each_judge_has_its_prompt_and_the_runs_seed(models, tmp_path):
    (tmp_path / "my prompt.txt").write_text("{answer} {scale 1 to 2}")
    sampling = Sampling(7, 0.5)
    rewards, _, _ = judged(
        "", judges=models, prompts=f"reference 'kind={tmp_path}/my prompt.txt'", sampling=sampling, seed=4
    )
    by_name = {reward.name: reward for reward, _ in rewards.parts}
    assert by_name["kind"].prompt.scale == (1.0, 2.0) and by_name["brief"].prompt.needs("reference")
    assert all((judge.seed, judge.sampling) == (4, sampling) for judge in by_name.values())
    assert not judged("", judges=models).rewards.parts[0][0].prompt.needs("reference")


def test_a_model_says_how_many_it_is_best_asked_at_once(models):
    models["kind"].at_once = 3
    rewards, _, _ = judged("", judges=models)
    assert [judge.at_once for judge, _ in rewards.parts] == [3, 16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judges": {"numbers": None}}, "a judge cannot be called 'numbers', which is the name of a reward"),
        ({"prompts": "kin=quality"}, "unknown judge in `judge_prompt`: 'kin'; did you mean 'kind'"),
        ({"prompts": "kind=qualty"}, "unknown prompt of a judge 'qualty'"),
        ({"prompts": "'kind"}, "cannot read `judge_prompt="),
    ],
)
def test_what_does_not_fit_is_refused(models, changes, message):
    with pytest.raises(UserError, match=message):
        judged("", **{"judges": models, **changes})


def test_a_judge_and_a_function_of_one_name_are_refused(models, tmp_path):
    """The judge was left out, and never asked."""
    (tmp_path / "own.py").write_text("def kind(completion):\n    return 1.0\n")
    for weight in ("", "=0.5"):
        with pytest.raises(UserError, match="a judge cannot be called 'kind', which is the name of a reward"):
            judged(f"{tmp_path / 'own.py'}:kind{weight}", judges={"kind": models["kind"]})


def test_names_of_metrics_are_taken(models):
    with pytest.raises(UserError, match="a reward cannot be called 'mean'"):
        judged("", judges={"mean": models["kind"]})
