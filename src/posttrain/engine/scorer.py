"""Reward-model inference: conversations in, one score per ensemble member out; or one per step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, cast

import torch

from posttrain.data.chat import ChatFormat
from posttrain.data.loaded import Unusable
from posttrain.data.messages import written
from posttrain.data.packing import Example, pack, size_of
from posttrain.data.ratings import Reasoning, stepwise_of
from posttrain.data.tokenizer import ChatTokenizer, load_tokenizer
from posttrain.errors import RewardError, TemplateError
from posttrain.models.attributes import Scores, load_scores
from posttrain.models.heads import StepModel
from posttrain.models.load import locate
from posttrain.models.precision import default_device, dtype_of
from posttrain.types import Message, steps_in

_PLAIN = (Message("user", "1"), Message("assistant", "2"))


class ScorerFacts(NamedTuple):
    """What is known of a reward model, wherever its weights are."""

    name: str
    members: int  # scores of a conversation
    comparable: bool  # whether the zeros of its scores are known
    most: int  # maximum tokens of a conversation
    stop_ids: frozenset[int]
    steps: bool = False  # whether its scores are of steps, as of a process reward model


@dataclass(frozen=True)
class Scorer:
    """A reward model with its chat format and micro-batch size. A `ScoreFn`."""

    model: Scores
    chat: ChatFormat
    microbatch_tokens: int
    tail: tuple[int, ...] = ()  # what its template writes behind the stop token: models of other tools are read there

    def __call__(self, conversations: Sequence[Sequence[Message]]) -> list[tuple[float, ...]]:
        """The scores of conversations that end with a response, each read where the model's template ends.

        That is the response's stop token, and for models that were not trained here what the template writes behind it.
        A process reward model gives the logit of each step of the response (`steps_in`) that it is right. Raises
        `RewardError` for a conversation that does not fit the model.
        """
        examples: list[Example] = []
        for messages in conversations:
            example = self._of_steps(messages) if self.steps else self._of_reply(messages)
            if size_of(example) + len(self.tail) > self.most:
                raise RewardError(
                    f"a conversation has {size_of(example)} tokens for the reward model "
                    f"'{self.model.body.name}', which takes {self.most}, the smaller of its context "
                    f"{self.model.body.context} and `microbatch_tokens={self.microbatch_tokens}`; leave it out, or "
                    "shorten it"
                )
            examples.append(example)
        return self.of(examples)

    @property
    def steps(self) -> bool:
        """Whether its scores are of steps."""
        return isinstance(self.model, StepModel)

    @property
    def most(self) -> int:
        """Maximum tokens of a conversation."""
        return min(self.model.body.context, self.microbatch_tokens)

    @property
    def facts(self) -> ScorerFacts:
        """What is known of it."""
        body = self.model.body
        known = body.name, self.model.members, self.model.comparable, self.most, frozenset(body.stop_ids)
        return ScorerFacts(*known, self.steps)

    def _of_steps(self, messages: Sequence[Message]) -> Example:
        text = messages[-1].content
        steps = tuple(text[start:end] for start, end in steps_in(text))
        try:
            return stepwise_of(self.chat, Reasoning((*messages[:-1],), steps, (True,) * len(steps))).example
        except Unusable as reason:
            raise RewardError(f"the process reward model '{self.model.body.name}': {reason}") from reason

    def _of_reply(self, messages: Sequence[Message]) -> Example:
        """The prompt, and the tokens of the last message with its stop token, as in training.

        Special tokens that it spells are ordinary text: a policy must not write the turn of a user that praises it. It
        may say what the template cannot render as one turn. That is scored as far as a stop token, without the special
        tokens: it must not end a run.
        """
        prompt = self.chat.prompt_ids(messages[:-1])
        try:
            read = [*messages[:-1], self.chat.in_words(messages[-1])]
            said = self.chat.training_ids(read, train_on="last").token_ids[len(prompt) :]
        except TemplateError:
            if messages[-1].tool_calls:  # of a data set: not what a policy happened to say
                raise
            ids = self.chat.tokenizer.encode(messages[-1].content, add_special_tokens=False)
            spoken = takewhile(lambda token: token not in self.chat.stop_ids, ids)
            stop = self.chat.training_ids(_PLAIN, train_on="last").token_ids[-1]
            said = [*(token for token in spoken if token not in self.chat.silent), stop]
        return Example(tuple(prompt), tuple(said), (False,) * len(said))

    def of(self, examples: Sequence[Example]) -> list[tuple[float, ...]]:
        """The same of tokens that end with the stop token."""
        if self.tail:
            unlearned = (False,) * len(self.tail)
            examples = [Example(e.prefix, e.continuation + self.tail, e.learned + unlearned) for e in examples]
        return scores_of(self.model, examples, microbatch_tokens=self.microbatch_tokens)


def load_scorer(name: str, *, precision: str = "auto", microbatch_tokens: int = 4096) -> Scorer:
    """Load a trained reward model; raises `ModelError` if it is none."""
    device = default_device()
    model = load_scores(name, dtype=dtype_of(precision, device), device=device)
    tokenizer = load_tokenizer(locate(name))
    chat = ChatFormat(tokenizer, model.body.stop_ids)
    return Scorer(model, chat, microbatch_tokens, () if isinstance(model, StepModel) else _tail(tokenizer, chat))


def _tail(tokenizer: ChatTokenizer, chat: ChatFormat) -> tuple[int, ...]:
    """The tokens that the template adds after the last stop token; empty if there are none."""
    rendered = cast(str, tokenizer.apply_chat_template(written(_PLAIN), tokenize=False))
    ids = tokenizer.encode(rendered, add_special_tokens=False)
    stops = [place for place, token in enumerate(ids) if token in chat.stop_ids]
    return tuple(ids[stops[-1] + 1 :]) if stops else ()


@torch.inference_mode()
def scores_of(model: Scores, examples: Sequence[Example], *, microbatch_tokens: int) -> list[tuple[float, ...]]:
    """The score of each sequence by each head, or of each of its steps, in order."""
    found: dict[int, tuple[float, ...]] = {}
    for row in pack(examples, microbatch_tokens):
        found |= {i: tuple(scores) for i, scores in zip(row.examples, model.scores(row).tolist(), strict=True)}
    padded = isinstance(model, StepModel)
    return [tuple(s for s in found[i] if not (padded and math.isnan(s))) for i in range(len(examples))]
