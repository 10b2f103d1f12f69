"""Search for answers step by step, by the scores of a process reward model: beam search, and lookahead.

Snell et al. 2024 (https://arxiv.org/abs/2408.03314, section 5). A step is a line, as for the model that scores it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from posttrain.data.order import seed_for
from posttrain.environments.env import Seat, SingleTurn
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Played, Players, play
from posttrain.types import Episode, Outcome, StopReason, Task, Turn

SEPARATOR = "\n"  # ends a step


class Path(NamedTuple):
    """An answer so far."""

    task: int  # the number of the task
    tokens: tuple[int, ...] = ()
    begun: int = 0  # how many of them were there before its last step
    last: Played | None = None  # the episode in which that step was sampled, with the text so far
    ended: bool = False

    @property
    def played(self) -> Played:
        """Of one that has a step."""
        assert self.last is not None
        return self.last

    @property
    def size(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        turn = _turn(self.played)
        return len(turn.context_ids) + len(turn.token_ids)


class _Step(SingleTurn):
    """The policy says one step of its answer."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        await seats["policy"].turn(task.prompt, stop=[SEPARATOR])
        return Outcome()


@dataclass
class Searched:
    """The answers to one task, the first ended first, and what the search for them took."""

    answers: list[Played] = field(default_factory=list[Played])
    scores: list[float] = field(default_factory=list[float])
    tokens: int = 0  # sampled, those of steps that were dropped among them
    read: int = 0  # by a process reward model: the prompt and all steps, whenever it is asked


def beam_search(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    players: Players,
    judge: Callable[[Sequence[Episode]], Sequence[float]],
    *,
    beams: int,
    expansions: int,
    lookahead: int = 0,
    seed: int = 0,
) -> list[Searched]:
    """N answers to each task; all tasks are searched at the same time.

    N first steps are sampled. Of those after which the answer goes on, the best N/M are continued M times each, and so
    on. An answer that has ended is one of the N: the others share what is left, the best ones first. With a lookahead
    of k, a step is scored at the end of up to k more, which are decoded greedily and dropped.

    Args:
        environment: one question and one answer.
        tasks: the problems.
        players: the policy, with the temperature of steps and the most tokens of an answer.
        judge: scores answers so far, as a process reward model does; may raise `RewardError`.
        beams: N.
        expansions: M.
        lookahead: k.
        seed: decides all draws.

    Raises:
        EpisodeError: a step could not be sampled.
    """
    found, live = [Searched() for _ in tasks], [[Path(n)] for n in range(len(tasks))]
    greedy = replace(players, sampling=replace(players.sampling, temperature=0.0))
    for step in count():
        left = [beams - len(one.answers) for one in found]
        asked = [paths[i % len(paths)] for paths, n in zip(live, left, strict=True) for i in range(n)]
        if not asked:
            break
        paths = ends = _continued(environment, tasks, players, asked, seed_for(seed, "step", step))
        for _ in range(lookahead):
            ends = _continued(environment, tasks, greedy, ends, seed)
        scores = judge([end.played.episode for end in ends])
        live = [[] for _ in tasks]
        for score, path, end in sorted(zip(scores, paths, ends, strict=True), key=lambda each: -each[0]):
            one = found[path.task]
            one.tokens += len(end.tokens) - path.begun
            one.read += end.size
            if path.ended:
                one.answers.append(path.played)
                one.scores.append(score)
            else:
                live[path.task].append(path)
        for one, going in zip(found, live, strict=True):
            del going[-(-(beams - len(one.answers)) // expansions) :]
    return found


def _continued(
    environment: ScoredEnvironment, tasks: Sequence[Task], players: Players, paths: Sequence[Path], seed: int
) -> list[Path]:
    """Each path with another step, but those that have ended."""
    going = [path for path in paths if not path.ended]
    if not going:
        return [*paths]
    stepwise, none_lost = replace(environment, environment=_Step()), replace(players, max_lost=0.0)
    seeds = [seed_for(seed, "path", number) for number in range(len(going))]
    said = iter(play(stepwise, [tasks[path.task] for path in going], none_lost, seeds, [p.tokens for p in going]))
    return [path if path.ended else _with_step(path, next(said), players) for path in paths]


def _with_step(path: Path, played: Played | Exception, players: Players) -> Path:
    assert isinstance(played, Played)  # none may be lost
    turn = _turn(played)
    longer = path._replace(tokens=(*path.tokens, *turn.token_ids), begun=len(path.tokens), last=played)
    ended = turn.stop_reason is not StopReason.STOP or turn.token_ids[-1] in players.chat.stop_ids
    full = len(longer.tokens) >= players.sampling.max_new_tokens or longer.size >= (players.max_tokens or math.inf)
    return longer._replace(ended=ended or full)


def _turn(played: Played) -> Turn:
    ((turn,),) = (trajectory.turns for trajectory in played.trajectories.values())
    return turn
