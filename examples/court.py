"""Court: two advocates that learn, and a judge that does not.

    posttrain rl --environment examples/court.py:Court --judge "bench=http://localhost:8000/v1#MODEL" \
        --reward examples/court.py:verdict --max-new-tokens 128

Each advocate sees the claim and what the other said. The judge reads the pleadings without knowing what is true, and
splits 1 between the seats: a reward of role judge, with a score for each seat.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.environments import Environment, Seat
from posttrain.rewards import RewardContext, reward_function
from posttrain.types import Episode, Message, Outcome, Sampling, Score, Task

SEATS = ("for", "against")
CLAIMS = ("Homework helps.", "Cities should ban cars.", "Zoos do good.", "Exams are fair.", "Tea beats coffee.")
JUDGE = (
    'Two advocates plead on the claim "{}". Decide by what they say alone, and answer with "for" or "against".\n\n{}'
)


@dataclass(frozen=True)
class Court(Environment):
    """Both advocates plead `rounds` times, in turn."""

    seats: tuple[str, ...] = SEATS
    trained: tuple[str, ...] = SEATS
    max_turns: int = 2

    def tasks(self, split: str, seed: int) -> list[Task]:
        """A claim; the last one is held out."""
        claims = CLAIMS[:-1] if split == "train" else CLAIMS[-1:]
        return [Task((Message("user", claim),), id=claim) for claim in claims]

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """The environment itself pays nothing."""
        claim, said = task.prompt[0].content, ""
        for turn in range(2 * self.max_turns):
            seat = SEATS[turn % 2]
            brief = f'Plead {seat} the claim "{claim}" in two sentences.' if turn < 2 else ""
            told = f"{brief}\n{said and 'The other side said: ' + said}".strip()
            said = (await seats[seat].turn([Message("user", told)])).text
        return Outcome(metrics={"words": len(said.split())})


@reward_function(role="judge", bounds=(0, 1))
async def verdict(episode: Episode, reward_context: RewardContext) -> Mapping[str, Score]:
    """1 to the seat that the judge names; nothing to either where it names none."""
    pleadings = "\n".join(f"{seat}: {message.content!r}" for seat, message in episode.transcript)
    asked = [Message("user", JUDGE.format(episode.task.id, pleadings))]
    seed = reward_context.seed_for("verdict", pleadings)
    reply = await reward_context.judge("bench").chat(asked, sampling=Sampling(16, 0.0), seed=seed)
    found = reply.text.strip().lower().strip(".\"'")
    none = Score.not_applicable("the judge names no side")
    return {seat: Score(float(seat == found)) if found in SEATS else none for seat in SEATS}
