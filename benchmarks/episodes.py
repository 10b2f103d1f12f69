"""Episodes of several turns: what tools cost, what earlier turns cost, and what long replies cost the others.

    python benchmarks/episodes.py            # the packaged model
    python benchmarks/episodes.py --rounds 5 --json

Four questions, each in turns of the two ways in one process, medians over the rounds:

- `--episodes` of 4 turns with a tool of 1 s after each, in the schedules `continuous` and `lockstep`, against the sum
  of what sampling and tools take one after the other.
- Tokens of prompts that go through the model in a fourth turn, with and without the prefix cache.
- `--episodes` of 4 turns whose replies have log-normal lengths, `continuous` against `lockstep`.
- `--groups` of 4 replies of log-normal lengths, and a judge that takes 2 s a verdict and gives 4 or 16 at once: scored
  when all are sampled, and `pipelined`.
"""

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lengths import LONGEST, Varied

from posttrain.engine.client import Client, Schedule
from posttrain.engine.policy import Policy, load_policy
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.environments import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.fast_paths import without
from posttrain.rewards import Weighted, parse_rewards
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Message, Request, Sampling, Score, Task

TURNS = 4
SHOWN = 24  # tokens that are shown before each later turn
COMPLETIONS = 4  # of a group that a judge reads
VERDICT_S, AT_ONCE = 2.0, (4, 16)


@dataclass(frozen=True)
class Game:
    """Lengths of the replies of each episode, and how long its tool takes."""

    lengths: Sequence[Sequence[int]]
    tool_s: float = 0.0


def play(engine: TransformersEngine, prompt: Sequence[int], game: Game, schedule: Schedule) -> float:
    """Seconds that all episodes take."""
    scheduler = Scheduler(engine)
    asks = Client(scheduler, schedule, turns=True)

    async def episode(number: int) -> None:
        tokens = (*prompt[:-1], prompt[-1])
        for turn, length in enumerate(game.lengths[number]):
            done = await asks.submit(Request(tokens, Sampling(length), seed=100 * number + turn), (number, 0, turn))
            await asyncio.sleep(game.tool_s)
            tokens = (*tokens, *done.token_ids, *prompt[:SHOWN])
        asks.leave()

    async def everyone() -> None:
        asks.enter(len(game.lengths))
        await asyncio.gather(*(episode(number) for number in range(len(game.lengths))))

    began = time.perf_counter()
    scheduler.run(asks, everyone())
    return time.perf_counter() - began


def computed(engine: TransformersEngine, prompt: Sequence[int], length: int) -> tuple[int, int]:
    """Tokens of prompts that went through the model in the fourth turn of one episode, and those of its history."""
    with engine.open(turns=True) as decoding:
        tokens: tuple[int, ...] = tuple(prompt)
        before = history = 0
        for turn in range(TURNS):
            before, history = decoding.computed, len(tokens)
            decoding.add(turn, Request(tokens, Sampling(length), seed=turn))
            done: dict[int, Any] = {}
            while turn not in done:
                done |= decoding.step()
            tokens = (*tokens, *done[turn].token_ids, *prompt[:SHOWN])
        return decoding.computed - before, history


class VariedEngine(TransformersEngine):
    """Ends each reply at its own length."""

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Any]:
        with super().open(on_tokens, turns=turns) as decoding:
            yield Varied(decoding)


@dataclass(frozen=True)
class SlowJudge(EpisodeReward):
    """Waits for each verdict, as for an API or a sandbox."""

    free: asyncio.Semaphore
    name: str = "slow"

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        async def verdict() -> Score:
            async with self.free:
                await asyncio.sleep(VERDICT_S)
            return Score(1.0)

        return await asyncio.gather(*(verdict() for _ in episodes))


def judged(policy: Policy, groups: int, at_once: int = 0, *, pipelined: bool = False) -> float:
    """Seconds until all groups are sampled and scored; without a judge, sampled."""
    judge = SlowJudge(asyncio.Semaphore(at_once))
    environment = (
        ScoredEnvironment(Weighted(((judge, 1.0),))) if at_once else ScoredEnvironment(parse_rewards("length=1"))
    )
    tasks = [Task((Message("user", f"Tell me about the number {number}."),)) for number in range(groups)]
    engine = VariedEngine(policy.model, frozenset())
    players = Players(engine, policy.chat, Sampling(LONGEST), schedule="continuous", pipelined=pipelined)
    began = time.perf_counter()
    sample_groups(environment, tasks, players, completions_per_prompt=COMPLETIONS, seed=0)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure episodes of several turns.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="hub id, folder or packaged model")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (default: 3)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a reply (default: 32)")
    parser.add_argument("--episodes", type=int, default=16, help="with tools, and of varied lengths (default: 16)")
    parser.add_argument("--groups", type=int, default=8, help="that a judge reads (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()
    policy = load_policy(args.model)
    engine = TransformersEngine(policy.model, frozenset())  # no stop tokens: replies are as long as they are to be
    text = "You are told the results of tools, and say what to do next. " * 16
    prompt = policy.chat.text_ids(text)[:200]
    even = [[args.tokens] * TURNS] * args.episodes
    draw = random.Random(0)
    uneven = [
        [max(4, min(256, int(draw.lognormvariate(3.3, 0.8)))) for _ in range(TURNS)] for _ in range(args.episodes)
    ]
    play(engine, prompt, Game(even), "lockstep")  # warm
    rows: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, game, schedule in (
            ("sampling alone", Game(even), "lockstep"),
            ("tools, continuous", Game(even, 1.0), "continuous"),
            ("tools, lockstep", Game(even, 1.0), "lockstep"),
            ("lengths, continuous", Game(uneven), "continuous"),
            ("lengths, lockstep", Game(uneven), "lockstep"),
        ):
            rows.setdefault(name, []).append(play(engine, prompt, game, schedule))
        rows.setdefault("groups alone", []).append(judged(policy, args.groups))
        for n in AT_ONCE:
            rows.setdefault(f"judge of {n}, at the end", []).append(judged(policy, args.groups, n))
            rows.setdefault(f"judge of {n}, pipelined", []).append(judged(policy, args.groups, n, pipelined=True))
    seconds = {name: median(found) for name, found in rows.items()}
    with_cache, history = computed(engine, prompt, args.tokens)
    with without("prefix cache"):
        without_cache, _ = computed(engine, prompt, args.tokens)
    tools = float(args.episodes * TURNS)  # what tools add one after the other
    hidden = 1 - (seconds["tools, continuous"] - seconds["sampling alone"]) / tools
    found = {
        "seconds": seconds,
        "one after the other": seconds["sampling alone"] + tools,
        "tools hidden": hidden,
        "fourth turn: tokens of its history computed again": (with_cache - SHOWN) / (history - SHOWN),
        "the same without the prefix cache": (without_cache - SHOWN) / (history - SHOWN),
        "lengths: lockstep over continuous": median(
            a / b for a, b in zip(rows["lengths, lockstep"], rows["lengths, continuous"], strict=True)
        ),
        **{
            f"judge of {n}: at the end over pipelined": median(
                a / b for a, b in zip(rows[f"judge of {n}, at the end"], rows[f"judge of {n}, pipelined"], strict=True)
            )
            for n in AT_ONCE
        },
    }
    if args.json:
        print(json.dumps(found))
        return
    for name, value in seconds.items():
        print(f"{name:24} {value:6.1f} s")
    for name, value in list(found.items())[1:]:
        print(f"{name}: {value:.3g}")


if __name__ == "__main__":
    main()
