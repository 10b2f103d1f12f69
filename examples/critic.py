"""A reward that asks a judge a question of its own: the share of three votes that find an answer polite.

    posttrain rl --dataset prompts.jsonl --judge "critic=http://localhost:8000/v1#MODEL" \
        --reward "examples/critic.py:polite numbers"

Seeds come from the context, so a resumed run asks the same and finds the replies in its cache. The answer is quoted as
JSON: what a policy wrote cannot end the quotation.
"""

import json

from posttrain.rewards import RewardContext, reward_function
from posttrain.types import Message, Sampling, Score


@reward_function(role="judge", bounds=(0, 1))
async def polite(prompt: str, completion: str, reward_context: RewardContext) -> Score:
    """The share of yes among the votes that say yes or no; not applicable where none does."""
    judge = reward_context.judge("critic")
    text = f"Is this answer polite? Say yes or no and nothing else. The answer, as JSON: {json.dumps(completion)}"
    votes: list[bool] = []
    for number in range(3):
        seed = reward_context.seed_for("polite", prompt, completion, number)
        reply = await judge.chat([Message("user", text)], sampling=Sampling(16), seed=seed)
        said = reply.text.strip().lower().rstrip(".")
        votes += [said == "yes"] if said in ("yes", "no") else []
    return Score(sum(votes) / len(votes)) if votes else Score.not_applicable("no vote says yes or no")
