"""Faults of the environments: what a seat is told, what reaches the episode, and what the conformance kit overlooks."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("environments/single_turn.py", old, new, "environments/test_single_turn.py")
        for old, new in [
            ("need_seats(self, seats)", "pass"),
            (".turn(task.prompt)", ".turn(task.prompt[-1:])"),
            ("(*task.prompt, reply)", "(reply,)"),
            ("return self.reward.total(scores)", "return sum(score.value for score in scores.values())"),
            ("return self.reward.outcome", "return next(iter(self.reward.weights))"),
        ]
    ),
    Mutation("environments/env.py", "if name not in seats", "if name in seats", "environments/test_env.py"),
    *(
        Mutation("environments/testing.py", old, new, "environments/test_testing.py")
        for old, new in [
            ("len(set(environment.seats)) != len(environment.seats)", "False"),
            ("not environment.seats or ", ""),
            ("if episode.task != task:", "if False:"),
            ("if episode.messages[: len(task.prompt)] != task.prompt:", "if False:"),
            ("elif first.told[0][: len(task.prompt)] != task.prompt:", "elif False:"),
            ("if not first.told:", "if first.told is None:"),
            ("if any(message in seat.said for message in told):", "if False:"),
            ("if not _in_order(", "if False and not _in_order("),
            ("rest = iter(given)", "rest = given"),
            ("if len(seats) == 1 and _conversation(seat)", "if False and _conversation(seat)"),
            ("if len(seats) == 1 and _conversation(seat)", "if _conversation(seat)"),
            ("for _ in range(_EVENT_LOOP_ROUNDS)", "for _ in range(0)"),
            ("if episode != alone[i // 2]", "if False"),
            ("except SeatFailure:\n        return []", "except SeatFailure:\n        return ['failed']"),
            ("isinstance(error.__cause__, SeatFailure)", "True"),
            ('return ["a seat\'s failure is swallowed: play returned an episode"]', "return []"),
            ("if list(await environment.score([])):", "if False:"),
            ("if scores.keys() != together[0].keys():", "if False:"),
            ("if environment.outcome not in scores:", "if False:"),
            ("if score.applicable and not math.isfinite(score.value)", "if False"),
            ("if not math.isfinite(environment.total(scores)) and", "if False and"),
            ("if _values(alone) != _values(scores):", "if False:"),
            ('(score.value == 1.0) != (wanted == "gold")', 'score.value == 0.0 and wanted == "gold"'),
            ('(score.value == 1.0) != (wanted == "gold")', 'score.value == 1.0 and wanted == "empty"'),
            ("[task for task in tasks if task.gold]", "tasks"),
            ("if len(self.said) >= _MOST_TURNS:", "if False:"),
            ("min(len(self.said), len(self.replies) - 1)", "0"),
        ]
    ),
]
