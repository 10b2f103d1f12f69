"""Critique and revision by a constitution: the supervised half of Constitutional AI.

    posttrain revise --dataset prompts.jsonl --judge "helper=OWNER/NAME" --output revised.jsonl --pairs pairs.jsonl
    posttrain revise --dataset prompts.jsonl --judge "helper=http://localhost:8000/v1#MODEL" --rounds 4 \
        --constitution mine.toml --output revised.jsonl
    posttrain sft --dataset revised.jsonl
    posttrain preference --algorithm dpo --dataset pairs.jsonl

Bai et al. 2022 (https://arxiv.org/abs/2212.08073), section 3.1: a model answers, is asked what is wrong with its answer
by a principle that is sampled, and is asked to write it again; `rounds` times. The requests are turns of a chat, behind
examples of the constitution (few-shot). Where a reply is truncated or empty the rounds before it stand; without one the
prompt is left out, and counted.

What is finished of a run that was interrupted lies beside the output (`revised.jsonl.part`): the same command goes on.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from posttrain.background import few_of, finish
from posttrain.bindings.judges import MAY_DIFFER, judges_in
from posttrain.data import load_tasks, reading_of, seed_for
from posttrain.data.digests import rows_digest
from posttrain.data.messages import tools_column, written
from posttrain.errors import UserError, as_typed
from posttrain.options.judging import Revise
from posttrain.options.option import as_written, given
from posttrain.rewards.judges.constitution import Constitution, read_constitution
from posttrain.runs import jsonl
from posttrain.runs.progress import Progress
from posttrain.types import ChatModel, Message, Sampling, StopReason, Task

TOGETHER = 32  # prompts at a time; what was kept of them is all that stays


class _Unfinished(Exception):
    """A reply that was truncated, or that says nothing."""


def run(config: Revise, *, quiet: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Answer, criticise, revise and write; the files are there when all of them is, or not at all."""
    if not config.dataset:
        raise UserError("`dataset` is required: a jsonl or parquet file or folder, or a hub id, of prompts")
    if not given(config.judge):
        raise UserError("`judge` is required: the model that answers and revises, NAME=MODEL or NAME=URL#MODEL")
    files = jsonl.new_files({"output": config.output, "pairs": config.pairs})
    path, pairs = files["output"], files.get("pairs")
    judging = judges_in(config)
    judging.refuse_policy("posttrain revise")
    if len(judging.models) != 1:
        raise UserError(f"one model answers and revises; `judge` names {', '.join(judging.models)}")
    ((name, model),) = judging.models.items()
    constitution = read_constitution(config.constitution, "critique", "revision")
    tasks = load_tasks(config.dataset, named=("completion",), system=config.system, **reading_of(config))
    judging.load()
    options = {k: v for k, v in as_written(config).items() if k not in ("output", "pairs", "dataset", *MAY_DIFFER)}
    read = {"rows": rows_digest(tasks), "constitution": rows_digest([constitution])}
    parts = jsonl.Chunks(path, options | read | {"models": [*judging.folders.values()]})
    done = sum(len(part["rows"]) for part in parts.done)
    notes = [f"{done} of {len(tasks)} prompts were done before"] if done else []
    at_once = getattr(model, "at_once", config.judge_concurrency)
    with judging.kept_beside(path), Progress(f"revise by {name}", len(tasks), start=done, quiet=quiet) as progress:
        for start in range(done, len(tasks), TOGETHER):
            some = tasks[start : start + TOGETHER]
            found = finish(few_of(at_once, partial(_revised, config, model, constitution), some))
            tokens = [sum(of) for of in zip(*(tokens for _, tokens in found), strict=True)]
            parts.add({"rows": [row for row, _ in found], "tokens": tokens})
            progress.step(start + len(some))
    rows = [row for part in parts.done for row in part["rows"] if row]
    changed = [row for row in rows if row["messages"][-1]["content"] != row["original"]]
    if rows:
        jsonl.write(path, rows)
    else:
        notes.append(f"no prompt has a revision, so {path} is not written; raise `judge_max_new_tokens`")
    if pairs:
        jsonl.write(pairs, map(_pair, changed))
    parts.remove()
    tokens = [sum(of) for of in zip(*(part["tokens"] for part in parts.done), strict=True)]
    left, same = len(tasks) - len(rows), len(rows) - len(changed)
    lines = [f"{len(rows):,} of {len(tasks):,} prompts in {path}, {same:,} of them unchanged"]
    lines += [f"{len(changed):,} pairs in {pairs}"] if pairs else []
    lines += [f"{left:,} left out: a reply before the first revision, or that, was truncated or empty"] if left else []
    lines += [f"{tokens[0]:,} prompt tokens, {tokens[1]:,} completion tokens"]
    counts = {"prompts": len(tasks), "revised": len(rows), "unchanged": same, "left_out": left}
    about = {"path": path, **counts, "pairs": len(changed) if pairs else None, "notes": [*map(as_typed, notes)]}
    spent = dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=True))
    return [*(f"note: {note}" for note in about["notes"]), *lines], about | spent


async def _revised(
    config: Revise, model: ChatModel, constitution: Constitution, task: Task
) -> tuple[dict[str, Any] | None, tuple[int, int]]:
    """The demonstration of a prompt, None if it is left out; and the tokens of prompts and of replies."""
    sampling, tokens = Sampling(config.judge_max_new_tokens, config.judge_temperature), [0, 0]

    async def ask(said: Sequence[Message], *place: int | str) -> str:
        seed = seed_for(config.seed, "revise", task.id, repr(task.prompt), *place)
        reply = await model.chat(said, sampling=sampling, seed=seed)
        tokens[0] += reply.usage.prompt_tokens
        tokens[1] += reply.usage.completion_tokens
        if reply.stop_reason is not StopReason.STOP or not reply.text.strip():
            raise _Unfinished
        return reply.text.strip()

    system = [message for message in task.prompt[:1] if message.role == "system"]
    asked = task.prompt[len(system) :]
    draw = random.Random(seed_for(config.seed, "principles", task.id, repr(task.prompt)))
    rounds, original, answer = list[dict[str, str]](), "", ""
    try:
        first = task.metadata.get("completion")
        original = answer = first if isinstance(first, str) else await ask(task.prompt, "answer")
        for number in range(config.rounds):
            principle = draw.choice(constitution.principles)
            said = [*system, *_shots(config, constitution), *asked, Message("assistant", answer)]
            said.append(Message("user", principle.critique))
            critique = await ask(said, number, "critique")
            request = Message("user", principle.revision)
            answer = await ask([*said, Message("assistant", critique), request], number, "revision")
            rounds.append({"principle": principle.name, "critique": critique, "revision": answer})
    except _Unfinished:  # what was revised before stands
        if not rounds:
            return None, (tokens[0], tokens[1])
    conversation = [*task.prompt, Message("assistant", answer)]
    row = {"messages": written(conversation), **tools_column(conversation), "id": task.id, "original": original}
    return {**row, "rounds": rounds}, (tokens[0], tokens[1])


def _shots(config: Revise, constitution: Constitution) -> list[Message]:
    """The first examples, each as the turns that are asked for here."""
    by_name = {principle.name: principle for principle in constitution.principles}
    found: list[Message] = []
    for one in constitution.examples[: config.examples]:
        principle = by_name[one.principle]
        turns = (one.prompt, one.response, principle.critique, one.critique, principle.revision, one.revision)
        found += [Message("assistant" if n % 2 else "user", text) for n, text in enumerate(turns)]
    return found


def _pair(row: dict[str, Any]) -> dict[str, Any]:
    tools = {"tools": row["tools"]} if "tools" in row else {}
    *prompt, last = row["messages"]
    return {"prompt": prompt, **tools, "chosen": last["content"], "rejected": row["original"], "id": row["id"]}
