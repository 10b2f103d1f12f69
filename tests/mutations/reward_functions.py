"""Faults of reward functions that are called in other processes."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation(file, old, new, "rewards/test_elsewhere.py")
        for file, old, new in [
            ("rewards/reward.py", "(RewardError, UserError, ProcessLost)", "(RewardError, UserError)"),
            ("rewards/combine.py", "return replace(reward, reward=changed(reward.reward))", "return reward"),
            ("rewards/combine.py", "ask(reward, self.timeout_s)", "ask(reward, 300.0)"),
        ]
    ),
]
