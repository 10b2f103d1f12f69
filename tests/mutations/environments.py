"""Faults of the environments: what a seat is told, what reaches the episode, and what the conformance kit overlooks."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("environments/single_turn.py", old, new, "environments/test_single_turn.py")
        for old, new in [
            ("need_seats(self, seats)", "pass"),
            (".turn(task.prompt)", ".turn(task.prompt[-1:])"),
        ]
    ),
    Mutation("environments/env.py", "if name not in seats", "if name in seats", "environments/test_env.py"),
    *(
        Mutation("environments/testing.py", old, new, "environments/test_testing.py")
        for old, new in [
            ("len(set(environment.seats)) != len(environment.seats)", "False"),
            ("not environment.seats or ", ""),
            ("if unknown := [name for name in trained_seats(environment)", "if unknown := [name for name in ()"),
            ("if list(train) != list(again):", "if False:"),
            (
                'for t in environment.tasks("heldout", _SEED) if',
                'for t in environment.tasks("heldout", _SEED) if False and',
            ),
            ("        await environment.close()", "        pass"),
            ("    await environment.open()\n", ""),
            ("elif len(played.seats) == 1 and first.told[0][: len(task.prompt)] != task.prompt:", "elif False:"),
            ("if not first.told:", "if first.told is None:"),
            ("if any(message in seat.said for told in seat.told for message in told):", "if False:"),
            ("if any(not told for told in seat.told):", "if False:"),
            ("    if not isinstance(outcome, Outcome):\n", "    if False:\n"),
            ("if unknown := [name for name in outcome.rewards", "if unknown := [name for name in ()"),
            ("if not math.isfinite(value)]", "if False]"),
            ("{**outcome.rewards, **outcome.metrics}", "outcome.rewards"),
            ("for _ in range(_EVENT_LOOP_ROUNDS)", "for _ in range(0)"),
            ("if played.record != alone[i // 2].record", "if False"),
            ("except SeatFailure:\n        return []", "except SeatFailure:\n        return ['failed']"),
            ("isinstance(error.__cause__, SeatFailure)", "True"),
            ('return ["a seat\'s failure is swallowed: play returned an outcome"]', "return []"),
            ("        if gold is False:\n", "        if False:\n"),
            ("        if gold is False:\n", "        if not gold:\n"),
            ('if (await _play(environment, task, "", alike=True, reason=reason)).outcome.solved:', "if False:"),
            ("(StopReason.STOP, StopReason.CONTEXT)", "(StopReason.STOP,)"),
            ("if len(self.said) >= self.max_turns:", "if len(self.said) > self.max_turns:"),
            ("min(len(self.said), len(self.replies) - 1)", "0"),
        ]
    ),
]
