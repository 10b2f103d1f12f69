"""A trained model to try: chat and completions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posttrain.data.order import seed_for
from posttrain.data.packing import Example, PackedRow
from posttrain.data.tasks import dress
from posttrain.engine.chat_models import scored, scoring_requests
from posttrain.engine.engine import cut_at_stop
from posttrain.engine.policy import Policy, load_policy, streamed
from posttrain.environments.env import own_sampling
from posttrain.errors import UserError
from posttrain.runs import config_file
from posttrain.runs.result import RunResult
from posttrain.runs.run import CONFIG
from posttrain.training.resolve_model import saved_model
from posttrain.types import Message, Request, Sampling

Said = str | Sequence[Mapping[str, str]]
"""A question, or a conversation of messages with `role` and `content`."""


@dataclass(frozen=True)
class Loaded:
    """A model with its chat template and an engine. It is spoken to as its run spoke to it."""

    policy: Policy
    system: str | None = None
    prompt_template: str = "{prompt}"

    def chat(
        self,
        said: Said,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int = 0,
        stream: Callable[[str], object] | None = None,
    ) -> str:
        """The reply to a question or a conversation; the most likely one unless a temperature is given.

        Its text is the model's own, and is not to be trusted. `stream` is called with each new part of it as it comes.
        """
        show = (lambda _, text: stream(text)) if stream else None
        found = self.generate([said], max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, stream=show)
        return found[0][0]

    def generate(
        self,
        prompts: Sequence[Said],
        *,
        n: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int = 0,
        stream: Callable[[int, str], object] | None = None,
    ) -> list[list[str]]:
        """`n` completions of each prompt, which depend only on the seed and the settings; `stop`: see `Sampling`.

        `stream` is called with the number of a completion and new text of it as that comes; those of the first prompt
        have 0 to n - 1.

        Raises:
            UserError: a setting out of its range, or a prompt that is none.
        """
        if isinstance(cast(object, prompts), str):
            raise UserError(f"`prompts` is a list; for one prompt type chat({prompts!r})")
        if n < 1 or max_new_tokens < 1 or temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
            raise UserError(
                "`n` and `max_new_tokens` must be 1 or more, `temperature` and `top_k` 0 or more, and `top_p` above 0 "
                "and at most 1"
            )
        sampling = own_sampling(Sampling(max_new_tokens, temperature, top_k, top_p), {"stop": stop})
        ids = [tuple(self.policy.chat.prompt_ids(self._messages(said))) for said in prompts]
        if long := next((len(one) for one in ids if len(one) >= self.policy.model.context), 0):
            raise UserError(f"a prompt has {long} tokens, and the model's context {self.policy.model.context}")
        requests = [Request(one, sampling, seed_for(seed, i, j)) for i, one in enumerate(ids) for j in range(n)]
        chat, engine = self.policy.chat, self.policy.engine
        completions = streamed(engine, requests, chat, stream) if stream else engine.generate(requests)
        found = [chat.decode(cut_at_stop(done, sampling.stop, chat.decode).token_ids) for done in completions]
        return [found[i * n : (i + 1) * n] for i in range(len(ids))]

    def logprobs(self, said: Said, continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """The logprob of each token of given answers to a question or a conversation; an answer's is their sum.

        They are of the raw logits, without a temperature, and without a stop token behind the answer. If the
        conversation ends with the assistant, the answers go on in that message.

        Raises:
            UserError: an answer has no tokens or does not fit, or the engine gives no logprobs.
        """
        chat, context = self.policy.chat, self.policy.model.context
        requests = scoring_requests(chat, context, self._messages(said), continuations)
        return scored(requests, self.policy.engine.generate(requests))

    def top_logprobs(
        self, said: Said, continuations: Sequence[str], top_k: int = 5
    ) -> list[list[tuple[tuple[str, float], ...]]]:
        """What the model would have said most likely in place of each token of given answers.

        For each answer and each of its tokens the `top_k` likeliest tokens there as (text, logprob), the likeliest
        first; of the raw logits, and whatever engine there is, by the model in this process. Errors as of `logprobs`.
        """
        policy, model = self.policy, self.policy.model
        if not 1 <= top_k <= len(model.head):
            raise UserError(f"`top_k` is from 1 to the {len(model.head):,} tokens of the vocabulary; got {top_k}")
        found: list[list[tuple[tuple[str, float], ...]]] = []
        for request in scoring_requests(policy.chat, model.context, self._messages(said), continuations):
            row, cut = PackedRow(), request.scored_from
            prompt, answer = request.token_ids[:cut], request.token_ids[cut:]
            row.add_family(prompt, [(0, Example(prompt, answer, (True,) * len(answer)))])
            places = zip(*(each.tolist() for each in model.likeliest(row, top_k)), strict=True)
            found.append([tuple((policy.chat.decode([i]), n) for i, n in zip(*each, strict=True)) for each in places])
        return found

    def _messages(self, said: Said) -> tuple[Message, ...]:
        if isinstance(said, str):
            messages = [Message("user", said)]
        else:
            try:
                messages = [Message(cast(Any, one["role"]), one["content"]) for one in said]
            except (TypeError, KeyError) as error:
                raise UserError(f"a message has 'role' and 'content'; got {said!r:.80}") from error
        return tuple(dress(messages, self.system, self.prompt_template))


def load(
    model: str | Path | RunResult,
    *,
    engine: str = "embedded",
    precision: str = "auto",
    system: str | None = None,
    prompt_template: str | None = None,
) -> Loaded:
    """Load a model to try it.

    Args:
        model: a run, a folder, a hub id or the name of a packaged model. A run means its best checkpoint, or else its
            latest.
        engine: embedded, vllm, or the address of a vLLM server.
        precision: float32, bfloat16, or auto (the faster one).
        system: the system message; that of the run unless given.
        prompt_template: the template of each question; that of the run unless given.

    Raises:
        UserError: no such model, or the engine is not installed.
    """
    saved = saved_model(str(model.run if isinstance(model, RunResult) else model))
    config = saved.run / CONFIG if saved.run else None
    trained = config_file.read(config) if config and config.is_file() else {}
    return Loaded(
        load_policy(saved.where, precision=precision, engine=engine),
        trained.get("system") if system is None else system,
        trained.get("prompt_template", "{prompt}") if prompt_template is None else prompt_template,
    )
