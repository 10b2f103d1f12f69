"""Sample completions of a prompt, of a file of prompts, in a chat, or in episodes of an environment.

    posttrain generate --model runs/rl-2026-01-31-1 --prompt "What is 17 - 9 + 4?" --n 4
    echo "What is 17 - 9 + 4?" | posttrain generate --greedy
    posttrain generate --prompts questions.txt
    posttrain generate --chat
    posttrain generate --environment examples/nim.py:Nim --seats "second=human" --max-new-tokens 4

In a conversation every token stays as it was sampled or shown: a turn is appended to them and nothing is encoded again.
On a terminal a single reply, and those of a conversation, are shown as they come.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.data import load_tasks, seed_for
from posttrain.data.tasks import dress
from posttrain.engine.policy import Policy, load_policy, streamed
from posttrain.episodes.prompt_filter import fitting
from posttrain.episodes.seats import PolicySeat
from posttrain.errors import UserError, as_typed
from posttrain.options.evaluation import Generate
from posttrain.recipes.generate.episodes import EpisodesResult, play_episodes, prepare
from posttrain.report.markup import printable
from posttrain.runs.progress import Progress
from posttrain.training.resolve_model import saved_model, spoken_otherwise
from posttrain.types import Completion, Message, Request, Sampling, StopReason, Task


@dataclass(frozen=True, slots=True)
class Generated:
    """One completion of one prompt."""

    prompt: str
    text: str
    stop_reason: StopReason
    tokens: int
    logprob: float  # of the whole completion, in nats, under the sampling settings


@dataclass(frozen=True)
class GenerateResult:
    """What the model said, prompt by prompt, and how fast."""

    model: str
    replies: tuple[Generated, ...]
    seconds: float  # of sampling, without loading the model
    notes: tuple[str, ...] = ()
    shown: bool = False  # a conversation was on the terminal already

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens over the time that sampling took."""
        return sum(reply.tokens for reply in self.replies) / self.seconds if self.seconds > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {
            "model": self.model,
            "completions": [asdict(reply) for reply in self.replies],
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "notes": [as_typed(note) for note in self.notes],
        }

    def lines(self) -> list[str]:
        """The completions, each prompt once above its own; control characters are made visible."""
        found: list[str] = [f"note: {as_typed(note)}" for note in self.notes]
        several = len({reply.prompt for reply in self.replies}) > 1
        for i, reply in enumerate(() if self.shown else self.replies):
            if several and (i == 0 or reply.prompt != self.replies[i - 1].prompt):
                found.append(f"> {printable(reply.prompt)}")
            found += [printable(reply.text), f"  [{_ended(reply)}]"]
        tokens = sum(reply.tokens for reply in self.replies)
        return [*found, f"{tokens:,} tokens in {self.seconds:.1f} s, {self.tokens_per_second:,.0f} a second"]


def run(
    config: Generate, *, quiet: bool = False, lines: Iterable[str] | None = None
) -> GenerateResult | EpisodesResult:
    """Answer the prompts, hold a conversation, or play episodes; `lines` stands for standard input."""
    _check(config)
    said = sys.stdin if lines is None else lines
    saved = saved_model(config.model)
    notes = [*saved.notes()]
    notes += spoken_otherwise(saved, system=config.system, prompt_template=config.prompt_template)
    words: dict[str, Any] = {"chat_template": config.chat_template, "template_args": config.template_args}
    prepared, tasks = None, list[Task]()
    if config.environment:
        prepared = prepare(config, partial(_tasks, config, said) if config.prompts else None)
    elif not config.chat:
        tasks = _tasks(config, said)
        fitting(tasks, saved.where, title=saved.title, **words)  # an error before the weights are read
    words |= {"precision": config.precision, "engine": config.engine, "cache_gb": config.cache_gb}
    policy = load_policy(saved.where, **words)
    sampling = Sampling(config.max_new_tokens, 0.0)
    if not config.greedy:
        sampling = Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p)
    show: Callable[[str], object] = (lambda text: None) if quiet else print
    streams = sys.stdout.isatty() and not quiet  # somebody reads the replies as they come
    if config.chat:
        show(f"{saved.title}: type a line; an empty one ends the conversation")
        replies, seconds = _chat(config, policy, sampling, said, show, streams)
        return GenerateResult(saved.title, replies, seconds, tuple(notes), shown=True)
    if prepared:
        show = print if prepared.people else show  # who plays must see what is asked
        found, seconds = play_episodes(config, prepared, policy, sampling, said, show, quiet)
        return EpisodesResult(saved.title, tuple(found), seconds, (*notes, *prepared.notes))
    requests = [
        Request(tuple(policy.chat.prompt_ids(task.prompt)), sampling, seed_for(config.seed, i, j))
        for i, task in enumerate(tasks)
        for j in range(config.n)
    ]
    began = time.perf_counter()
    if alone := len(requests) == 1 and streams:
        found = streamed(policy.engine, requests, policy.chat, _show_part)
    else:
        with Progress("generate", len(requests), quiet=quiet) as progress, progress.phase("sampling"):
            found = policy.engine.generate(requests, progress.tokens)
    seconds = time.perf_counter() - began
    asked = [task.prompt[-1].content for task in tasks for _ in range(config.n)]
    replies = tuple(
        Generated(prompt, policy.chat.decode(done.token_ids), done.stop_reason, len(done.token_ids), sum(done.logprobs))
        for prompt, done in zip(asked, found, strict=True)
    )
    if alone:
        show(f"\n  [{_ended(replies[0])}]")
    return GenerateResult(saved.title, replies, seconds, tuple(notes), shown=alone)


def _check(config: Generate) -> None:
    given = [name for name in ("prompt", "prompts", "chat") if getattr(config, name)]
    if len(given) > 1:
        raise UserError(f"`{given[0]}` and `{given[1]}` exclude each other; pass one of them")
    if config.environment and (config.prompt or config.chat):
        raise UserError("`environment` takes tasks of `prompts` or its own; leave out `prompt` and `chat`")
    if config.seats and not config.environment:
        raise UserError("`seats` needs `environment`; pass it too")
    if config.n > 1 and (config.greedy or config.chat):
        raise UserError(f"`n={config.n}` needs sampling outside a conversation; leave out `greedy` and `chat`, or `n`")


def _tasks(config: Generate, said: Iterable[str]) -> list[Task]:
    words: dict[str, Any] = {"system": config.system, "prompt_template": config.prompt_template}
    if config.prompts and not str(config.prompts).endswith(".txt"):
        return load_tasks(config.prompts, **words)
    if isinstance(config.prompts, str) and config.prompts:
        try:
            prompts = Path(config.prompts).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the prompts in '{config.prompts}': {error}; give a text file") from error
    else:
        prompts = [config.prompt or "".join(said)]
    asked = [prompt.strip() for prompt in prompts if prompt.strip()]
    if not asked:
        raise UserError('a prompt is required: `prompt` "...", `prompts` FILE, or `chat`')
    return [Task(dress([Message("user", prompt)], **words), id=f"prompt {i}") for i, prompt in enumerate(asked, 1)]


def _show_part(_: int, text: str) -> None:
    print(printable(text), end="", flush=True)


def _chat(
    config: Generate,
    policy: Policy,
    sampling: Sampling,
    said: Iterable[str],
    show: Callable[[str], object],
    streams: bool,
) -> tuple[tuple[Generated, ...], float]:
    """One conversation, and its seconds of sampling. The seat that plays episodes in training keeps all its tokens."""

    async def ask(request: Request, turn: int) -> Completion:
        if streams:
            return streamed(policy.engine, [request], policy.chat, _show_part)[0]
        return policy.engine.generate([request])[0]

    seed, room = seed_for(config.seed, "chat"), policy.model.context
    seat = PolicySeat(ask, policy.chat, sampling, seed, room=room, max_turns=sys.maxsize)
    replies: list[Generated] = []
    seconds = 0.0
    for line in said:
        if not line.strip():
            break
        new = dress([Message("user", line.strip())], None if replies else config.system, config.prompt_template)
        began = time.perf_counter()
        answer = asyncio.run(seat.turn(new))
        seconds += time.perf_counter() - began
        tokens = answer.usage.completion_tokens
        logprob = sum(seat.turns[-1].logprobs) if tokens else 0.0
        replies.append(Generated(line.strip(), answer.text, answer.stop_reason, tokens, logprob))
        cut = "" if answer.stop_reason is StopReason.STOP else f"\n  [{_ended(replies[-1])}]"
        show(cut if streams else f"{printable(answer.text)}{cut}")
    return tuple(replies), seconds


def _ended(reply: Generated) -> str:
    why = {
        StopReason.STOP: "it stopped by itself",
        StopReason.LENGTH: "truncated by --max-new-tokens",
        StopReason.CONTEXT: "truncated by the model's context",
    }[reply.stop_reason]
    return f"{reply.tokens} tokens, {why}"
