"""Two candidate replies in a conversation, from one policy or two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from posttrain.data.order import seed_for
from posttrain.engine.policy import Policy
from posttrain.errors import TemplateError
from posttrain.types import Message, Request, Role, Sampling

TRIES = 4  # draws of a reply that says something, and something else than the first

Asked = tuple[int, Sequence[Mapping[str, str]]]
"""A seed, and a conversation."""
Candidate = tuple[str, str, str]
"""A text, the name of its policy, and its stop reason."""


@dataclass(frozen=True)
class Talker:
    """A policy, with the name that is recorded with its replies."""

    name: str
    policy: Policy


@dataclass(frozen=True)
class TwoReplies:
    """One policy gives both replies, or each of two gives one."""

    talkers: Sequence[Talker]
    sampling: Sampling

    def __call__(self, asked: Sequence[Asked]) -> list[list[Candidate] | str]:
        """The replies to conversations, each with its policy's name and stop reason; or why there are none.

        Draws depend on a conversation's seed only, not on the batch. An empty reply, or one equal to the first, is
        resampled a few times.
        """
        found: list[list[Candidate] | str] = [[] for _ in asked]
        for draw, talker in enumerate((self.talkers[0], self.talkers[-1])):
            for turn in range(TRIES):
                self._draw(talker, asked, found, (draw, turn))
            for place, replies in enumerate(found):
                if not isinstance(replies, str) and not replies[draw][0].strip():
                    found[place] = "the model says nothing to this; try again"
        return found

    def _draw(
        self, talker: Talker, asked: Sequence[Asked], found: list[list[Candidate] | str], which: tuple[int, int]
    ) -> None:
        """The first or second reply to each conversation; in a later try where it has to be another one."""
        draw, turn = which
        requests: dict[int, Request] = {}
        for place, ((number, said), replies) in enumerate(zip(asked, found, strict=True)):
            if isinstance(replies, str) or (turn and _stands(replies)):
                continue
            try:
                prompt = talker.policy.chat.prompt_ids([Message(cast(Role, m["role"]), m["content"]) for m in said])
            except TemplateError as problem:
                found[place] = f"the model cannot read this conversation: {problem}"
                continue
            room = talker.policy.model.context - len(prompt)
            if room < 1:
                found[place] = "this conversation is as long as the model can read; end it"
                continue
            sampling = replace(self.sampling, max_new_tokens=min(room, self.sampling.max_new_tokens))
            requests[place] = Request(tuple(prompt), sampling, seed_for(number, draw, turn))
        completions = talker.policy.engine.generate(list(requests.values())) if requests else []
        for place, done in zip(requests, completions, strict=True):
            text = talker.policy.chat.decode(done.token_ids).replace("\0", "\N{REPLACEMENT CHARACTER}")
            replies = cast(list[Candidate], found[place])
            if replies[draw:] and not text.strip():
                continue  # what was drawn before may say something
            replies[draw:] = [(text, talker.name, str(done.stop_reason))]


def _stands(replies: Sequence[Candidate]) -> bool:
    """Whether the last reply is not empty, and differs from the one before it."""
    *before, (said, _, _) = replies
    return bool(said.strip()) and all(said != text for text, _, _ in before)
