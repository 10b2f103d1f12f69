"""What a state is worth: where steps begin, what is continued from where, and how often."""

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.episodes.episodes import play, sample_groups
from posttrain.episodes.monte_carlo_values import state_values, step_starts
from posttrain.episodes.sampler import Sampler
from posttrain.types import Sampling, States, StopReason, Trajectory, Turn
from tests.episodes.conversations import CHAT, Quiz, players, question, scored
from tests.episodes.test_episodes import STOP, letters

LINES = "ab\nc\nd"


JUDGED = scored(of=lambda episode: episode.completion.count("z") / 10)
"""An answer is worth how many letters z it has."""


def trajectory(text: str) -> Trajectory:
    ids = (*letters(text), STOP)
    return Trajectory(
        (Turn(tuple(CHAT.prompt_ids(question().prompt)), ids, (-1.0,) * len(ids), StopReason.STOP, text),)
    )


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (States(1, 0, 25), [0, 3, 5]),  # behind each line
        (States(1, 0, 2), [0, 3]),
        (States(1, 0, 1), [0]),
        (States(1, 2, 25), [0, 2, 4, 6]),
        (States(1, 99, 25), [0]),
    ],
)
def test_where_steps_begin(states, expected):
    assert step_starts(trajectory(LINES), states, CHAT) == expected


def test_a_line_that_ends_the_completion_begins_no_step():
    ids = letters("ab\n")
    whole = Trajectory((Turn((5,), ids, (-1.0,) * 3, StopReason.LENGTH, "ab\n"),))
    assert step_starts(whole, States(1, 0, 25), CHAT) == [0]


def test_an_episode_goes_on_from_its_opening():
    asked = []

    def say(request):
        asked.append(request)
        return (*letters("yz"), STOP)

    answers = ScriptedEngine(say, CHAT.stop_ids)
    asks = players(answers, Sampling(8))
    (found,) = play(scored(Quiz("More")), [question("2+2?", turns=2)], asks, [0], openings=[letters("ab")])
    prompt = tuple(CHAT.prompt_ids(question("2+2?").prompt))
    assert asked[0].token_ids == prompt + letters("ab") and asked[0].sampling.max_new_tokens == 6
    assert asked[1].token_ids[: len(asked[0].token_ids) + 3] == (*asked[0].token_ids, *letters("yz"), STOP)
    assert asked[1].sampling.max_new_tokens == 8
    assert [m.content for m in found.episode.messages] == ["2+2?", "abyz", "More 0", "yz"]
    assert sum(found.trajectories["policy"].sampled) == 6  # what was given was not sampled
    assert found.episode.completion_ids == (*asked[1].token_ids[len(prompt) :], *letters("yz"), STOP)  # but said


def test_a_state_is_worth_what_its_continuations_earn_on_average():
    first = ScriptedEngine(lambda request: (*letters(LINES), STOP), CHAT.stop_ids)
    tasks = [question("p"), question("q")]
    groups = sample_groups(JUDGED, tasks, players(first, Sampling(16)), completions_per_prompt=2, seed=0)
    asked = []

    def go_on(request):
        asked.append(request)
        said = request.token_ids[len(CHAT.prompt_ids(tasks[0].prompt)) :]
        return (*letters("z" * (1 + len(said)) if len(asked) % 2 else "z"), STOP)

    later = players(ScriptedEngine(go_on, CHAT.stop_ids), Sampling(16))
    found = state_values(groups, States(2, 0, 25), JUDGED, later, seed=7)
    assert len(asked) == 2 * 3 * 2  # tasks, states that are alike within a group, continuations
    assert len({request.seed for request in asked}) == len(asked)
    # a state of n tokens is continued by 1 + n letters z and by one: 10 / 10 points for each
    worth = {0: (1 + 1) / 2, 3: (4 + 1) / 2, 5: (6 + 1) / 2}
    assert len(found) == 4
    for valued in found:
        assert valued.steps == (0, 0, 0, 1, 1, 2, 2)
        assert valued.values == pytest.approx([worth[0]] * 3 + [worth[3]] * 2 + [worth[5]] * 2)


def test_tokens_of_later_turns_belong_to_the_last_step():
    first = ScriptedEngine(lambda request: (*letters("a\nb"), STOP), CHAT.stop_ids)
    asks = players(first, Sampling(16))
    groups = sample_groups(JUDGED, [question("p", turns=2)], asks, completions_per_prompt=1, seed=0)
    (valued,) = state_values(groups, States(1, 0, 25), JUDGED, asks, seed=0)
    assert valued.steps == (0, 0, 1, 1, 1, 1, 1, 1) == (0, 0, *[1] * 6)
    assert len(valued.values) == len(groups[0].rows[0].trajectory.logprobs)


def test_others_may_go_on_and_rewards_still_ask_the_policy():
    first = players(ScriptedEngine(lambda request: (*letters("a\nb"), STOP), CHAT.stop_ids), Sampling(16))
    groups = sample_groups(JUDGED, [question("p")], first, completions_per_prompt=2, seed=0)
    silent = players(ScriptedEngine(lambda request: pytest.fail("the policy is asked"), CHAT.stop_ids), Sampling(16))
    prover = players(ScriptedEngine(lambda request: (*letters("zz"), STOP), CHAT.stop_ids), Sampling(16))
    for valued in state_values(groups, States(2, 0, 25), JUDGED, silent, seed=0, by=prover):
        assert valued.values == pytest.approx([2.0] * 4)
    mine = Sampler(JUDGED, [question("p")], silent, 1, 2, seed=0, others={"prover": prover.engine})
    assert mine.state_values(groups, States(2, 0, 25, "prover"), 0)[0].values == pytest.approx([2.0] * 4)
