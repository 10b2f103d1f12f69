r"""Put items before people: prompts with completions, given or sampled from one model or several.

    posttrain annotate import --project helpful --dataset items.jsonl
    posttrain annotate import --project helpful --dataset prompts.jsonl \
        --models "smollm2-135m-instruct runs/rl-2026-01-31-1" --completions 2
    posttrain annotate import --project helpful --dataset items.jsonl \
        --ask 200 --choose information --reward-model runs/reward-model-2026-01-31-1

A row of given completions: `prompt` (text or a list of messages), `completions` (texts, or `{"text": ..., "model":
...}`), and if you like `item` (its name), `priority` (the higher, the sooner), and `expected`, the right answer, such
as `{"ranking": [[1], [0]]}`, of an item that is there to see who pays attention. The project is made if there is none.
For people who talk with a model a row needs a `topic`, which the model is not told; a `prompt` beside it is what the
conversation begins with, such as a system message. An item whose name is there already is left as it is, so that an
import that was cut off is simply typed again. With --ask only so many of the items that are not there yet are added, by
where an ensemble of reward models disagrees; typed again, as many more.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from posttrain.annotation.asking import RANDOM, WORTH, choose
from posttrain.annotation.kinds import KINDS, NoAnswer
from posttrain.annotation.store import projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.projects import NewItem
from posttrain.data import Row, load_tasks, parse_columns, read_rows, seed_for
from posttrain.data.rows import map_columns
from posttrain.errors import RewardError, UserError, unknown
from posttrain.monitoring import Progress
from posttrain.recipes.annotate.serve import FILE
from posttrain.rollouts.fitting import fitting
from posttrain.rollouts.policy import load_policy
from posttrain.rollouts.scorer import load_scorer
from posttrain.training.saved import saved_model
from posttrain.types import Message, Request, Role, Sampling, Task

_READ = ("prompt", "completions", "item", "id", "priority", "expected")


@dataclass(frozen=True)
class Import:
    """Put items before people: prompts with completions, given or sampled."""

    store: str = FILE
    """Where what people say is kept."""
    project: str = ""
    """The project to add them to; it is made if it is not there."""
    dataset: str = ""
    """Prompts, with completions unless --models samples them: a hub id, or a jsonl or parquet file or folder."""
    kind: str = "rank"
    """What people do in a project that is made: rank, compare, thumbs, score, steps, demonstrate, converse or
    red-team."""
    attributes: str = ""
    """What is scored in a project of that kind that is made, with spaces between them."""
    annotators_per_item: int = 3
    """To how many people an item goes, in a project that is made."""
    repeat_share: float = 0.0
    """Share of an annotator's items that come a second time, in a project that is made."""
    rules: str = ""
    """A file with the rules, one a line, that people try to make the model break in a red-team project that is made."""
    instructions: str = ""
    """A file with the instructions, in Markdown, of a project that is made; unless given, posttrain's own."""
    models: str = ""
    """Models to sample completions from, with spaces between them: hub ids, folders, runs, packaged models."""
    completions: int = 2
    """Completions of each model."""
    max_new_tokens: int = 256
    """The longest completion."""
    temperature: float = 1.0
    """Of sampling."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    columns: str = ""
    """Which columns to read, such as "prompt=question completions=answers"."""
    limit: int | None = None
    """Use only so many rows, from the first."""
    ask: int = 0
    """Add only so many items that are not there yet, those that teach most by --choose; 0: all. Items that are there to
    see who pays attention are always added."""
    choose: str = "random"
    """How they are chosen: random; or, by an ensemble, disagreement (the variance of how much better it finds one
    answer) or information (what the comparison is expected to tell it, in nats; for calibrated ones)."""
    reward_model: str = ""
    """The ensemble, trained by reward-model --ensemble 5: a run or a folder."""
    seed: int = 0
    """Decides what is sampled, and what is chosen by chance."""


@dataclass(frozen=True)
class Imported:
    """What was added."""

    project: str
    items: int
    there: int  # that were in the project already
    skipped: int  # for which too few different completions were sampled
    unasked: int = 0  # that were left for later

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The same for people."""
        more = f", {self.there:,} were there already" if self.there else ""
        more += f", {self.skipped:,} left out whose completions were all the same" if self.skipped else ""
        more += f", {self.unasked:,} left for later" if self.unasked else ""
        return [f"{self.items:,} items added to {self.project}{more}"]


def run(config: Import, *, quiet: bool = False) -> Imported:
    """Read or sample, then add all items at once or none."""
    if not config.project:
        raise UserError("say which project with --project; it is made if it is not there")
    if not config.dataset:
        raise UserError("say what to read with --dataset: a hub id, or a jsonl or parquet file or folder")
    _check_choice(config)
    store = open_store(config.store)
    with store.read() as connection:
        names = projects.names_of_items(connection, config.project)
        kind = projects.kind_of(connection, config.project) or config.kind
    if config.reward_model and kind in KINDS and KINDS[kind].ranking is None:
        raise UserError(f"an ensemble says which of several answers is better; here people {KINDS[kind].says}")
    if config.models and kind in KINDS and KINDS[kind].goes_on:
        raise UserError(f"--models samples answers; to {KINDS[kind].says}, name it with annotate serve --model")
    text = _text(config.instructions, "instructions")
    items, skipped = _sampled(config, kind, names, quiet) if config.models else (_given(config, kind), 0)
    new = [item for item in items if item.name not in names]
    chosen = _worth_asking(config, new, quiet) if config.ask else new
    with store.write() as connection:
        if config.project not in {project.name for project in projects.everything(connection)}:
            projects.create(
                connection,
                config.project,
                config.kind,
                text=text,
                annotators_per_item=config.annotators_per_item,
                repeat_share=config.repeat_share,
                attributes=config.attributes.split(),
                rules=_text(config.rules, "rules").splitlines(),
            )
        project = projects.find(connection, config.project)
        try:
            added = projects.add_items(connection, project, chosen)
        except NoAnswer as problem:
            raise UserError(f"an item's 'expected' is no answer: {problem}") from problem
    return Imported(config.project, added, len(items) - len(new), skipped, len(new) - len(chosen))


def _check_choice(config: Import) -> None:
    if config.choose not in (RANDOM, *WORTH):
        raise unknown("way to choose", config.choose, (RANDOM, *WORTH))
    if config.ask < 0:
        raise UserError(f"--ask must be 0 or more; got {config.ask}")
    if not config.ask and (config.choose != RANDOM or config.reward_model):
        raise UserError("--choose and --reward-model say which items to add; say how many with --ask")
    if (config.choose != RANDOM) != bool(config.reward_model):
        raise UserError(
            "--choose random asks no model; leave out --reward-model, or type --choose disagreement or information"
            if config.reward_model
            else f"--choose {config.choose} asks an ensemble; name it with --reward-model"
        )


def _worth_asking(config: Import, items: Sequence[NewItem], quiet: bool) -> list[NewItem]:
    """Those to ask now, and all that are there to see who pays attention."""
    free = [item for item in items if item.expected is None]
    scores = _scores(config, free, quiet) if config.reward_model else [()] * len(free)
    asked = {free[place].name for place in choose(scores, config.ask, config.choose, seed=config.seed)}
    return [item for item in items if item.expected is not None or item.name in asked]


def _scores(config: Import, items: Sequence[NewItem], quiet: bool) -> list[list[tuple[float, ...]]]:
    """Of each item the scores of its completions, each by every member."""
    short = next((item.name for item in items if len(item.completions) < 2), None)
    if short is not None:
        raise UserError(f"item '{short}' has fewer than two answers, and an ensemble chooses by comparing them")
    saved = saved_model(config.reward_model)
    scorer = load_scorer(saved.where, precision=config.precision)
    if scorer.model.members < 2:
        raise UserError(
            f"the reward model {config.reward_model} has one member, which cannot disagree; train several with "
            "reward-model --ensemble 5"
        )
    if not scorer.model.comparable:
        raise UserError(
            f"the scores of {config.reward_model} are not calibrated, so what they tell of people's choices is not "
            "known; train it with pairs held out (--eval-share)"
        )
    found: list[list[tuple[float, ...]]] = []
    with Progress(f"score by {saved.title}", len(items), quiet=quiet) as progress:
        for done, item in enumerate(items, 1):
            prompt = [Message(cast(Role, said["role"]), said["content"]) for said in item.prompt]
            try:
                found.append(scorer([[*prompt, Message("assistant", text)] for text, _, _ in item.completions]))
            except RewardError as problem:
                raise UserError(
                    f"item '{item.name}' is too long for the reward model, which takes {scorer.most} tokens"
                ) from problem
            progress.step(done)
    return found


def _text(file: str, what: str) -> str:
    if not file:
        return ""
    try:
        with open(file, encoding="utf-8") as found:
            return found.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"cannot read the {what} in '{file}': {problem}") from problem


def _given(config: Import, kind: str) -> list[NewItem]:
    rows = read_rows(config.dataset, limit=config.limit)
    if config.columns:
        rows = map_columns(rows, parse_columns(config.columns))
    return [_item(row, talk=kind in KINDS and KINDS[kind].goes_on is not None) for row in rows]


def _item(row: Row, *, talk: bool) -> NewItem:
    said = () if talk and "prompt" not in row and "topic" in row else row.messages("prompt")
    if talk and said and said[-1].role == "user":
        raise row.fail("people say the first word in a conversation; give them a 'topic', and no prompt that asks")
    prompt = [{"role": message.role, "content": message.content} for message in said]
    value = row.fields.get("completions") or []
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise row.fail(f"field 'completions' must be a list; got {value!r}")
    name, expected, priority = (
        row.fields.get("item", row.fields.get("id", row.id)),
        row.fields.get("expected"),
        row.fields.get("priority", 0),
    )
    if expected is not None and not isinstance(expected, Mapping):
        raise row.fail(f"field 'expected' must be an answer, such as {{\"ranking\": [[1], [0]]}}; got {expected!r}")
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise row.fail(f"field 'priority' must be a number; got {priority!r}")
    details = {key: value for key, value in row.fields.items() if key not in _READ}
    return NewItem(str(name), prompt, [_completion(row, one) for one in value], details, expected, float(priority))


def _completion(row: Row, value: Any) -> tuple[str, str, dict[str, Any]]:
    if isinstance(value, str):
        return value, "", {}
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        return (
            value["text"],
            str(value.get("model", "")),
            {k: v for k, v in value.items() if k not in ("text", "model")},
        )
    raise row.fail(f"field 'completions' has texts, or {{text, model}}; got {value!r}")


def _sampled(config: Import, kind: str, there: Collection[str], quiet: bool) -> tuple[list[NewItem], int]:
    """Items with completions of every model; what says the same as another one is left out.

    Of those that are there already nothing is sampled: they come back empty, to be counted.
    """
    if config.completions < 1 or config.max_new_tokens < 1 or not config.temperature > 0:
        raise UserError("--completions and --max-new-tokens must be 1 or more, and --temperature above 0")
    models = config.models.split()
    fewest, most = KINDS[kind].completions if kind in KINDS else (1, math.inf)
    if not fewest <= config.completions * len(models) <= most:
        raise UserError(
            f"to {KINDS[kind].says} there must be {fewest} to {most} answers; {config.completions} of each of "
            f"{len(models)} {'models are' if len(models) > 1 else 'model is'} {config.completions * len(models)}"
        )
    columns = parse_columns(config.columns) if config.columns else None
    every = load_tasks(config.dataset, columns=columns, limit=config.limit)
    tasks = [task for task in every if task.id not in there]
    said: list[dict[str, tuple[str, str, dict[str, Any]]]] = [{} for _ in tasks]
    for model in models if tasks else ():
        for index, text, details in _sample(config, model, tasks, quiet):
            said[index].setdefault(text, (text, model, details))
    items = [
        NewItem(
            task.id,
            [{"role": message.role, "content": message.content} for message in task.prompt],
            list(found.values()),
            {"sampling": {"temperature": config.temperature, "max_new_tokens": config.max_new_tokens}},
        )
        for task, found in zip(tasks, said, strict=True)
        if len(found) >= fewest
    ]
    known = [NewItem(task.id, [], [], {}) for task in every if task.id in there]
    return known + items, len(tasks) - len(items)


def _sample(config: Import, model: str, tasks: Sequence[Task], quiet: bool) -> list[tuple[int, str, dict[str, Any]]]:
    saved = saved_model(model)
    fitting(tasks, saved.where, title=saved.title)
    policy = load_policy(saved.where, precision=config.precision)
    sampling = Sampling(config.max_new_tokens, config.temperature)
    asked = [(index, turn) for index in range(len(tasks)) for turn in range(config.completions)]
    requests = [
        Request(tuple(policy.chat.prompt_ids(tasks[i].prompt)), sampling, seed_for(config.seed, model, tasks[i].id, j))
        for i, j in asked
    ]
    with Progress(f"import {saved.title}", len(requests), quiet=quiet) as progress, progress.phase("sampling"):
        found = policy.engine.generate(requests, progress.tokens)
    return [
        # a zero, which a model can write and PostgreSQL cannot keep, looks like what else is no letter
        (
            index,
            policy.chat.decode(done.token_ids).replace("\0", "\ufffd"),
            {"stop": str(done.stop_reason), "logprob": sum(done.logprobs)},
        )
        for (index, _), done in zip(asked, found, strict=True)
    ]
