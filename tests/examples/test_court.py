"""The court: each advocate hears the other, and the judge's verdict pays each seat."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import ScoredEnvironment
from posttrain.environments.scored import judged
from posttrain.environments.user_methods import load_environment
from posttrain.episodes.episodes import sample_groups
from posttrain.errors import RewardError
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.types import Message, Reply, Sampling, StopReason, Usage
from tests.episodes.conversations import CHAT, players

FILE = Path(__file__).parents[2] / "examples" / "court.py"
(STOP,) = CHAT.stop_ids


class Bench:
    """Names the side whose first pleading in the transcript is longer, or what it is told to say."""

    def __init__(self, says: str = "") -> None:
        self.says, self.asked = says, []

    async def chat(self, messages, *, sampling, tools=(), seed=0):
        self.asked.append((messages[0].content, seed))
        first, second = messages[0].content.split("\n\n")[1].split("\n")[:2]
        said = self.says or ("For." if len(first) - len("for") > len(second) - len("against") else "against")
        return Reply(Message("assistant", said), StopReason.STOP, Usage(0, 0))


@pytest.fixture
def court() -> Iterator[Any]:
    yield load_environment(f"{FILE}:Court")


def test_it_conforms(court):
    check_environment(court)


def test_each_side_hears_what_the_other_said(court):
    seats = {"for": ScriptedSeat(["A", "B"]), "against": ScriptedSeat(["C", "D"])}
    asyncio.run(court.play(court.tasks("train", 0)[0], seats, 0))
    assert [m[-1].content for m in seats["for"].told] == [
        'Plead for the claim "Homework helps." in two sentences.',
        "The other side said: C",
    ]
    assert [m[-1].content for m in seats["against"].told] == [
        'Plead against the claim "Homework helps." in two sentences.\nThe other side said: A',
        "The other side said: B",
    ]


def sampled(court, bench):
    def says(request):
        text = CHAT.tokenizer.decode(request.token_ids)
        long = "Plead for" in text and request.seed % 2
        return (*CHAT.tokenizer.encode("xyz" if long else "z", add_special_tokens=False), STOP)

    rewards, _, _ = judged(f"{FILE}:verdict", judges={"bench": bench}, seed=3)
    environment = ScoredEnvironment(rewards, court)
    engine = ScriptedEngine(says, CHAT.stop_ids)
    tasks = court.tasks("train", 0)[:2]
    return sample_groups(environment, tasks, players(engine, Sampling(8)), completions_per_prompt=6, seed=1)


def test_the_verdict_pays_each_seat_its_own_score(court):
    bench = Bench()
    groups = sampled(court, bench)
    assert len(bench.asked) == 12 and len({seed for _, seed in bench.asked}) > 1
    paid = set()
    for group in groups:
        for episode in range(6):
            rows = [row for row in group.rows if row.episode == episode]
            by_seat = {row.seat: row.reward for row in rows}
            long = rows[0].trajectory.turns[0].text == "xyz"
            assert by_seat == {"for": float(long), "against": float(not long)}
            paid.add(long)
    assert paid == {True, False}


def test_a_judge_that_names_no_side_pays_nobody(court):
    for group in sampled(court, Bench("Both are right.")):
        assert group.lost and all(reward != reward for reward in group.rewards)


def test_a_score_for_a_seat_that_does_not_exist_is_an_error(court, tmp_path):
    (tmp_path / "mine.py").write_text("def own(episode):\n    return {'for': 1, 'agianst': 0}\n")
    rewards, _, _ = judged(f"{tmp_path}/mine.py:own", judges={})
    engine = ScriptedEngine(lambda request: (STOP,), CHAT.stop_ids)
    with pytest.raises(RewardError, match=r"scores a seat 'agianst' on task .*; its seats are for, against"):
        sample_groups(
            ScoredEnvironment(rewards, court),
            court.tasks("train", 0)[:1],
            players(engine, Sampling(8)),
            completions_per_prompt=2,
            seed=1,
        )
