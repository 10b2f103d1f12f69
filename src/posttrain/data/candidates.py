"""Loading the answers that judges compare: one or several to each prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack, cast

from posttrain.data.files import Source, is_gym
from posttrain.data.layouts import gathered
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.preferences import is_preference, preferences_in
from posttrain.data.records import Record, typed
from posttrain.data.tasks import episode_in, task_in
from posttrain.errors import UserError
from posttrain.types import Episode, EpisodeGroup, Message, Task


@dataclass(frozen=True)
class Candidates:
    """The answers to one prompt."""

    group: EpisodeGroup
    given: tuple[float, ...] = ()  # what the data say of each, the higher the better; empty where they say nothing


def load_candidates(source: Source, **reading: Unpack[Reading]) -> Loaded[Candidates]:
    """The answers of a data set, by prompt.

    A row has `prompt` and `completions` (texts, or {text, model}, as `annotate import` takes them) or `responses`,
    maybe with `scores`; or it is a preference, or a completion, as `load_preferences` and `load_completions` have it.
    Other columns are metadata of its task.
    """
    if is_gym(source):
        raise UserError(f"'{source}' makes tasks without answers; give a file with completions, or with pairs")

    def read(row: Record) -> list[Candidates]:
        name = next((name for name in ("completions", "responses") if name in row and "chosen" not in row), "")
        if not name and is_preference(row):
            return [_pair(row, *each) for each in enumerate(preferences_in(row))]
        if not name:
            episode = episode_in(row)
            return [Candidates(EpisodeGroup(episode.task, (episode,)))]
        said = [
            row.as_answer(name, cast("Mapping[str, Any]", one).get("text") if isinstance(one, Mapping) else one)
            for one in row.as_list(name)
        ]
        scores = [row.as_number("scores", one) for one in row.as_list("scores")] if "scores" in row else []
        if not said or (scores and len(scores) != len(said)):
            raise row.fail(
                f"{len(said)} '{name}' need as many 'scores', or none, and there must be one; got {len(scores)}"
            )
        return [Candidates(_group(task_in(row), said), tuple(scores))]

    return read_all(source, read, gather=gathered, named=("**",), **reading)


def _pair(row: Record, number: int, pair: Any) -> Candidates:
    if pair.chosen_calls or pair.rejected_calls:
        raise Unusable("its answers call tools, which judges do not compare yet")
    own = {key: value for key, value in row.fields.items() if key not in ("prompt", "chosen", "rejected")}
    name = str(own.get("id", row.id))
    task = Task(pair.prompt, answer=own.get("answer"), metadata=own, id=f"{name} {number + 1}" if number else name)
    said = [pair.opening + text for text in (pair.chosen, pair.rejected)]
    return Candidates(_group(task, said), () if typed(row.get("tie")) == 1 else (1.0, 0.0))


def _group(task: Task, said: list[str]) -> EpisodeGroup:
    return EpisodeGroup(task, tuple(Episode(task, (*task.prompt, Message("assistant", text))) for text in said))
