r"""Import items to annotate: prompts with completions, given or sampled.

    posttrain annotate import --project helpful --dataset items.jsonl
    posttrain annotate import --project helpful --dataset prompts.jsonl \
        --models "smollm2-135m-instruct runs/rl-2026-01-31-1" --completions 2
    posttrain annotate import --project helpful --dataset items.jsonl \
        --ask 200 --choose information --reward-model runs/reward-model-2026-01-31-1
    posttrain annotate import --project helpful --dataset later.jsonl --models runs/rl-2026-01-31-1 \
        --ask 200 --choose moved --kl-from smollm2-135m-instruct

A row of given completions: `prompt` (text or a list of messages), `completions` (texts, or `{"text": ..., "model":
...}`), and if you like `item` (its name), `priority` (the higher, the sooner), and `expected`, the right answer, such
as `{"ranking": [[1], [0]]}`, of an item that is there to see who pays attention. The project is made if there is none.
For people who talk with a model a row needs a `topic`, which the model is not told; a `prompt` beside it is what the
conversation begins with, such as a system message. An item whose name is there already is left as it is, so that an
import that was cut off is simply typed again. With --ask only so many of the items that are not there yet are added:
those on which an ensemble of reward models disagrees, or where the model is furthest from an earlier one, whose answers
people have judged; typed again, as many more.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, cast

from posttrain.annotation.acquisition import WORTH, choose, worth
from posttrain.annotation.store import projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Completion, Item
from posttrain.annotation.task_kinds import KINDS, NoAnswer
from posttrain.data import Record, load_tasks, parse_columns, read_rows, seed_for
from posttrain.engine.policy import load_policy
from posttrain.engine.scorer import load_scorer
from posttrain.episodes.prompt_filter import fitting
from posttrain.errors import DataError, RewardError, UserError, unknown
from posttrain.evaluation.policy_kl import kl_from, refuse_incomparable
from posttrain.models.load import load_model
from posttrain.options.services import Import
from posttrain.runs.progress import Progress
from posttrain.training.resolve_model import SavedModel, saved_model
from posttrain.types import Message, Request, Role, Sampling, Task

RANDOM, MOVED = "random", "moved"
WAYS = (RANDOM, *WORTH, MOVED)
_READ = ("prompt", "completions", "item", "id", "priority", "expected")


def run(config: Import, *, quiet: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Read or sample, then add all items at once or none."""
    if not config.project:
        raise UserError("--project is required; it is created if missing")
    if not config.dataset:
        raise UserError("--dataset is required: a file, folder, glob or hub id")
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
    columns = parse_columns(config.columns)
    if config.models:
        items, skipped = _sampled(config, kind, names, columns, quiet)
    else:
        rows = read_rows(config.dataset, columns=columns, limit=config.limit)
        items, skipped = [_given(row, talk=kind in KINDS and KINDS[kind].goes_on is not None) for row in rows], 0
    new = [item for item in items if item.name not in names]
    chosen = _worth_asking(config, new, quiet) if config.ask else new
    with store.write() as connection:
        if not projects.kind_of(connection, config.project):
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
    counts = {"items": added, "there": len(items) - len(new), "skipped": skipped, "unasked": len(new) - len(chosen)}
    more = {"there": "were there already", "skipped": "left out whose completions were all the same"}
    more["unasked"] = "left for later"
    told = "".join(f", {counts[name]:,} {words}" for name, words in more.items() if counts[name])
    return [f"{added:,} items added to {config.project}{told}"], {"project": config.project, **counts}


def _check_choice(config: Import) -> None:
    """Refuse options that do not go together, before anything is read or sampled."""
    way, ensemble, earlier = config.choose, config.reward_model, config.kl_from
    if way not in WAYS:
        raise unknown("way to choose", way, WAYS)
    named = f"leave out --reward-model, or type --choose {' or '.join(WORTH)}"
    refused = {
        "--choose, --reward-model and --kl-from need the number of items to select: pass --ask": not config.ask
        and (way != RANDOM or ensemble or earlier),
        f"--choose {way} needs a reward-model ensemble: pass --reward-model": way in WORTH and not ensemble,
        f"--choose {way} uses no reward model; {named}": ensemble and way not in WORTH,
        f"--choose {way} uses no earlier model; leave out --kl-from, or type --choose {MOVED}": earlier
        and way != MOVED,
        "--choose moved ranks prompts by the KL of a model from an earlier one: pass the model with --models, and the "
        "earlier one with --kl-from": way == MOVED and not (earlier and config.models),
    }
    for says, wrong in refused.items():
        if wrong:
            raise UserError(says)


def _worths(config: Import, items: Sequence[Item], quiet: bool) -> list[float]:
    """What it is worth to ask each item; at random they are worth the same."""
    if config.choose == MOVED:
        return [item.details[MOVED]["kl"] for item in items]
    if config.choose == RANDOM:
        return [0.0] * len(items)
    short = next((item.name for item in items if len(item.completions) < 2), None)
    if short is not None:
        raise UserError(f"item '{short}' has fewer than two completions, which an ensemble needs to compare")
    saved = saved_model(config.reward_model)
    scorer = load_scorer(saved.where, precision=config.precision)
    if scorer.model.members < 2:
        raise UserError(
            f"the reward model {config.reward_model} has one member; train an ensemble with reward-model --ensemble 5"
        )
    if not scorer.model.comparable:
        raise UserError(
            f"the scores of {config.reward_model} are not calibrated, so the information gain is "
            "unknown; train it with held-out pairs (--eval-share)"
        )
    found: list[float] = []
    with Progress(f"score by {saved.title}", len(items), quiet=quiet) as progress:
        for done, item in enumerate(items, 1):
            prompt = [Message(cast(Role, said["role"]), said["content"]) for said in item.prompt]
            try:
                told = scorer([[*prompt, Message("assistant", one.text)] for one in item.completions])
            except RewardError as problem:
                raise UserError(
                    f"item '{item.name}' is too long for the reward model, which takes {scorer.most} tokens"
                ) from problem
            found.append(worth(told, config.choose))
            progress.step(done)
    return found


def _worth_asking(config: Import, items: Sequence[Item], quiet: bool) -> list[Item]:
    """Those to ask now, and all that are there to see who pays attention."""
    free = [item for item in items if item.expected is None]
    asked = {free[place].name for place in choose(_worths(config, free, quiet), config.ask, seed=config.seed)}
    return [item for item in items if item.expected is not None or item.name in asked]


def _text(file: str, what: str) -> str:
    if not file:
        return ""
    try:
        with open(file, encoding="utf-8") as found:
            return found.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"cannot read the {what} in '{file}': {problem}") from problem


def _sampled(
    config: Import, kind: str, there: Collection[str], columns: Mapping[str, str] | None, quiet: bool
) -> tuple[list[Item], int]:
    """Items with completions of every model; what says the same as another one is left out.

    Of those that are there already nothing is sampled: they come back empty, to be counted.
    """
    models = config.models.split()
    fewest, most = KINDS[kind].completions if kind in KINDS else (1, math.inf)
    if not fewest <= config.completions * len(models) <= most:
        raise UserError(
            f"to {KINDS[kind].says} there must be {fewest} to {most} answers; {config.completions} of each of "
            f"{len(models)} {'models are' if len(models) > 1 else 'model is'} {config.completions * len(models)}"
        )
    every = load_tasks(config.dataset, columns=columns, limit=config.limit)
    tasks = [task for task in every if task.id not in there]
    saved = {model: saved_model(model) for model in models if tasks}
    earlier = saved_model(config.kl_from) if config.kl_from else None
    for one in saved.values():
        fitting(tasks, one.where, title=one.title)
        if earlier is not None:
            refuse_incomparable(earlier.where, one.where, tasks, config.max_new_tokens)
    said: list[list[tuple[Completion, float]]] = [[] for _ in tasks]
    for model, one in saved.items():
        for place, answer in enumerate(_sample(config, model, one, earlier, tasks, quiet)):
            said[place // config.completions].append(answer)
    items = [
        _item_of(config, task, answers, earlier)
        for task, answers in zip(tasks, said, strict=True)
        if len({answer.text for answer, _ in answers}) >= fewest
    ]
    known = [Item(name=task.id) for task in every if task.id in there]
    return known + items, len(tasks) - len(items)


def _item_of(
    config: Import, task: Task, answers: Sequence[tuple[Completion, float]], earlier: SavedModel | None
) -> Item:
    """Each text once, by the model that said it first; how far the models have moved is told by all of them."""
    details: dict[str, Any] = {"sampling": {"temperature": config.temperature, "max_new_tokens": config.max_new_tokens}}
    if earlier is not None:
        details[MOVED] = {"from": earlier.title, "kl": fmean(moved for _, moved in answers)}
    first: dict[str, Completion] = {}
    for answer, _ in answers:
        answer.number = len(first)
        first.setdefault(answer.text, answer)
    return Item(name=task.id, prompt=_spoken(task.id, task.prompt), completions=list(first.values()), details=details)


def _sample(
    config: Import, model: str, saved: SavedModel, earlier: SavedModel | None, tasks: Sequence[Task], quiet: bool
) -> list[tuple[Completion, float]]:
    """A model's answers, task by task, each with how far the model has moved along it, in nats; 0 from no model."""
    policy = load_policy(saved.where, precision=config.precision)
    beside: dict[str, Any] = {"dtype": policy.model.dtype, "device": str(policy.model.device)}
    before = None if earlier is None else load_model(earlier.where, **beside)  # now: it may be none that writes
    sampling = Sampling(config.max_new_tokens, config.temperature)
    asked = [(index, turn) for index in range(len(tasks)) for turn in range(config.completions)]
    prompts = [tuple(policy.chat.prompt_ids(task.prompt)) for task in tasks]
    requests = [Request(prompts[i], sampling, seed_for(config.seed, model, tasks[i].id, j)) for i, j in asked]
    with Progress(f"import {saved.title}", len(requests), quiet=quiet) as progress:
        for note in (*saved.notes(), *(earlier.notes() if earlier else ())):
            progress.say(note)
        with progress.phase("sampling"):
            found = policy.engine.generate(requests, progress.tokens)
        moved = [0.0] * len(found)
        if before is not None:
            with progress.phase("comparing"):
                read, said = [request.token_ids for request in requests], [done.token_ids for done in found]
                moved = kl_from(before, policy.model, read, said, on_tokens=progress.tokens)
    return [
        (
            Completion(
                text=_kept(policy.chat.decode(done.token_ids)),
                model=model,
                details={"stop": str(done.stop_reason), "logprob": sum(done.logprobs)},
            ),
            nats,
        )
        for done, nats in zip(found, moved, strict=True)
    ]


def _given(row: Record, *, talk: bool) -> Item:
    """The item that a row describes; in one for people who `talk` with a model, they say the first word."""
    said = () if talk and "prompt" not in row and "topic" in row else row.messages("prompt")
    if talk and said and said[-1].role == "user":
        raise row.fail("people say the first word in a conversation; give them a 'topic', and no prompt that asks")
    prompt = _spoken(row.place, said)
    value = row.fields.get("completions") or []
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise row.fail(f"field 'completions' must be a list; got {value!r}")
    expected, priority = row.fields.get("expected"), row.fields.get("priority", 0)
    if expected is not None and not isinstance(expected, Mapping):
        raise row.fail(f"field 'expected' must be an answer, such as {{\"ranking\": [[1], [0]]}}; got {expected!r}")
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise row.fail(f"field 'priority' must be a number; got {priority!r}")
    return Item(
        name=str(row.fields.get("item", row.fields.get("id", row.id))),
        prompt=prompt,
        completions=[_completion(row, one, number) for number, one in enumerate(value)],
        details={key: value for key, value in row.fields.items() if key not in _READ},
        expected=None if expected is None else dict(expected),
        priority=float(priority),
    )


def _spoken(place: str, messages: Sequence[Message]) -> list[dict[str, str]]:
    """A prompt as annotators see it; the pages do not show tools or calls of tools."""
    if any(message.tools or message.tool_calls for message in messages):
        raise DataError(f"{place}: annotators cannot be shown tools or tool calls yet; write them into the content")
    return [{"role": message.role, "content": message.text} for message in messages]


def _kept(text: str) -> str:
    """A completion without zeros and half characters, which a model can write and no database keeps."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def _completion(row: Record, value: Any, number: int) -> Completion:
    said = {"text": value} if isinstance(value, str) else value
    if not isinstance(said, Mapping) or not isinstance(said.get("text"), str):
        raise row.fail(f"field 'completions' has texts, or {{text, model}}; got {value!r}")
    details = {key: word for key, word in said.items() if key not in ("text", "model")}
    return Completion(number=number, text=_kept(said["text"]), model=str(said.get("model", "")), details=details)
