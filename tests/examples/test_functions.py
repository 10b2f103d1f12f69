"""The example that makes functions with tests: each solution passes, and held-out rows are in no training row."""

import asyncio

from posttrain.rewards import CodeVerifier, code_tests
from posttrain.types import Episode, Message, Task
from tests.examples.test_examples import example


def test_its_solutions_pass_and_its_held_out_functions_are_new():
    functions = example("functions")
    train, heldout = ([*functions.rows(0, 200, heldout=held)] for held in (False, True))
    assert len({row["prompt"] for row in train}) > 150

    def asked(row):  # without the function's name
        return row["prompt"].split(" that ")[1]

    assert not {*map(asked, train)} & {*map(asked, heldout)}
    episodes = []
    for row in [*train[:4], *heldout[:2]]:
        task = Task((Message("user", row["prompt"]),), metadata={"test_list": row["test_list"]})
        assert len(code_tests.read_tests(task).names) == 1
        episodes.append(Episode(task, (*task.prompt, Message("assistant", row["completion"]))))
    assert [score.value for score in asyncio.run(CodeVerifier().score_episodes(episodes))] == [1.0] * 6
