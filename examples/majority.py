"""A reward without answers: what most of a group answer is taken for right (TTRL, https://arxiv.org/abs/2504.16084).

    posttrain rl --dataset gym:chain_sum --completions-per-prompt 16 --reward "examples/majority.py:majority tags=0.1"

Nothing says which answers are right: a policy that is right more often than wrong in any one way learns from it,
another becomes surer of its mistakes. What is logged as accuracy is agreement; `--gold` with a verifier on held-out
tasks says how many are right.
"""

from collections import Counter
from collections.abc import Sequence

from posttrain.rewards import extract, reward_function


@reward_function(bounds=(0, 1), min_group=2)
def majority(group: object, completions: Sequence[str]) -> list[float]:
    """1 for the answer in `<answer>` tags that most of the group give, whatever it is; 0 where there is none."""
    answers = [extract(completion, "answer") for completion in completions]
    votes = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=0)
    return [float(answer is not None and votes[answer] == most) for answer in answers]
