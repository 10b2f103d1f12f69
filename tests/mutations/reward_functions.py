"""Faults of reward functions that are called in other processes."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation(file, old, new, "rewards/test_elsewhere.py")
        for file, old, new in [
            ("rewards/elsewhere.py", "                self._note(score)\n", "                pass\n"),
            ("rewards/elsewhere.py", "isinstance(scores, Score) else scores.values()", "True else []"),
            ("rewards/elsewhere.py", "        return True\n", "        return False\n"),
            ("rewards/reward.py", "(RewardError, UserError, ProcessLost)", "(RewardError, UserError)"),
            ("rewards/elsewhere.py", "await in_thread(self.ask, groups)", "self.ask(groups)"),
            ("rewards/elsewhere.py", "found.source.digest != source.digest", "False"),
            ("rewards/combine.py", "if function.source and not function.asks]", "if function.source]"),
            ("rewards/combine.py", "if function.source and not function.asks]", "if not function.asks]"),
            ("rewards/combine.py", "return replace(reward, reward=changed(reward.reward))", "return reward"),
            ("rewards/combine.py", "ask(reward, self.timeout_s)", "ask(reward, 300.0)"),
            ("rewards/custom.py", ".expanduser().absolute()", ".expanduser()"),
            ("rewards/custom.py", "if score.applicable and not self.beyond and", "if not self.beyond and"),
        ]
    ),
]
