"""Policies compared by a judge: win rates with intervals, length-controlled ones, a leaderboard, cycles.

    posttrain arena --models "sft=runs/sft-1 rl=runs/rl-1 base=OWNER/NAME" --dataset prompts.jsonl --judge "j=URL#MODEL"
    posttrain arena --answers "ours.jsonl theirs.jsonl" --reward-model runs/reward-model-1 --baseline theirs
    posttrain arena --answers "gemma-7b-it.json.gz vicuna-7b-v1.5.json.gz"     # judged already, as AlpacaEval writes it

Every two policies are compared on the prompts that both have answered; a judge that compares is asked in both orders.
The leaderboard is Bradley and Terry's. Policies that beat each other in a circle are named: no leaderboard has room for
them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan
from pathlib import Path
from typing import Any

from posttrain.annotation.aggregation import bradley_terry
from posttrain.background import few_of, finish
from posttrain.bindings.judges import JudgeModels, named_models
from posttrain.bindings.scoring import scoring
from posttrain.data import Record, load_tasks, read_rows, reading_of
from posttrain.data.messages import written
from posttrain.errors import UserError, unknown, words_of
from posttrain.evaluation.arena import Compared, WinRate, cycles, win_rate
from posttrain.evaluation.judging import verdicts
from posttrain.options.audits import Arena
from posttrain.report import Estimate, Table
from posttrain.rewards.inputs import seed_of
from posttrain.runs import jsonl
from posttrain.runs.progress import announce
from posttrain.types import Message, Ranking, Sampling, Task

Answers = dict[str, dict[tuple[Message, ...], str]]
"""By policy, its answer to each prompt."""
_SUFFIX = re.compile(r"(\.(jsonl?|[ct]sv|parquet|arrow|gz|bz2|xz|zst))+$")  # of a file that is named as its policy is


@dataclass(frozen=True)
class ArenaResult:
    """Who beats whom."""

    rates: tuple[WinRate, ...]  # of every two policies that were compared
    against: tuple[WinRate, ...]  # of each policy against the baseline
    strengths: Mapping[str, tuple[float, float]]  # Bradley and Terry's, in log-odds, with standard error; best first
    cycles: tuple[tuple[str, str, str], ...]
    silent: int  # comparisons about which the judge said nothing

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        rates = {name: [one._asdict() for one in getattr(self, name)] for name in ("rates", "against")}
        return rates | {"strengths": dict(self.strengths), "cycles": list(self.cycles), "silent": self.silent}

    def lines(self) -> list[str]:
        """The same for people."""
        rows = [
            (one.policy, Estimate(one.rate, *one.ci95), Estimate(one.controlled, *one.controlled_ci95), str(one.n))
            for one in sorted(self.against, key=lambda one: -one.controlled)
        ]
        other = f"win rate against {self.against[0].other}"
        table = Table("", ("policy", other, "length-controlled", "prompts"), rows)
        board = [(name, f"{strength:+.2f} ± {error:.2f}") for name, (strength, error) in self.strengths.items()]
        told = [*table.lines(), "", *Table("", ("policy", "strength (Bradley-Terry)"), board).lines()]
        told += [f"cycle: {a} beats {b}, {b} beats {c}, {c} beats {a}" for a, b, c in self.cycles]
        return [*told, *([f"the judge said nothing about {self.silent} comparisons"] if self.silent else [])]


def run(config: Arena, *, quiet: bool = False) -> ArenaResult:
    """Read or sample the answers, have them compared, and with an output write the comparisons."""
    if not (config.answers or config.models):
        raise UserError("`answers` is required: files of answers; or `models` and `dataset`")
    path = jsonl.new_file(config.output) if config.output else None
    judges = bool(config.judge or config.reward or config.reward_model)
    answers, compared = Answers(), list[Compared]()
    how = reading_of(config)
    for file in words_of("answers", config.answers):
        for row in read_rows(file, **how):
            _read(row, _SUFFIX.sub("", Path(file).name), answers, compared, judged=not judges)
    if config.models:
        answers |= _sampled(config, quiet=quiet)
    silent = 0
    if judges:
        compared, silent = _judged(config, answers, quiet=quiet)
    names = list(dict.fromkeys([*answers, *(name for one in compared for name in (one.first, one.second))]))
    if not compared:
        raise UserError(
            f"{len(names)} policies ({', '.join(names)}) have no prompt in common, or no judge compared them; give "
            "answers of two or more to the same prompts, and `judge`, `reward_model` or `reward`"
        )
    baseline = config.baseline or names[0]
    if baseline not in names:
        raise unknown("policy", baseline, names)
    met = {frozenset((one.first, one.second)) for one in compared}
    rates = [win_rate(a, b, compared) for a, b in combinations(names, 2) if {a, b} in met]
    against = [win_rate(name, baseline, compared) for name in names if name != baseline and {name, baseline} in met]
    if not against:
        raise UserError(f"no policy was compared with the `baseline` {baseline}; name another one")
    if path:
        jsonl.write(path, map(_written, compared))
    return ArenaResult(tuple(rates), tuple(against), _strengths(names, compared), tuple(cycles(rates)), silent)


def _read(row: Record, file: str, answers: Answers, compared: list[Compared], *, judged: bool) -> None:
    """Add the answers of a row, or the comparison that it is."""
    prompt = next((name for name in ("prompt", "instruction") if name in row), "prompt")
    asked = row.prompt(prompt)
    if "models" in row and "chosen" in row:  # people's, as annotate export writes them
        said = [row.text("chosen"), row.text("rejected")]
        names = [row.as_text("models", row.as_mapping("models").get(side)) for side in ("chosen", "rejected")]
        share = 0.5 if row.get("tie") else 1.0
        compared += [Compared(names[0], names[1], share, (said[0], said[1]), asked)] if judged else []
    elif "output_1" in row and "output_2" in row:
        said = [row.text(f"output_{side}") for side in (1, 2)]
        names = [row.text(f"generator_{side}") for side in (1, 2)]
        if judged:
            preference = row.as_number("preference")
            if not 0.999 <= preference <= 2.001:  # of logprobs that were rounded
                raise row.fail(f"field 'preference' must be 1 (the first) to 2 (the second); got {preference}")
            share = min(1.0, max(0.0, 2 - preference))
            compared.append(Compared(names[0], names[1], share, (said[0], said[1]), asked))
    else:
        said = [row.text(next((name for name in ("completion", "output", "response") if name in row), "completion"))]
        names = [str(row.get("model") or row.get("generator") or file)]
    for name, text in zip(names, said, strict=True):
        if answers.setdefault(name, {}).setdefault(asked, text) != text and not judged:
            raise row.fail(f"it is a second answer of '{name}' to its prompt; give one, or a column `model` of each")


def _sampled(config: Arena, *, quiet: bool) -> Answers:
    """The answers of the models to the prompts of the data set."""
    if not config.dataset:
        raise UserError("`dataset` is required with `models`: the prompts that they answer")
    chats = JudgeModels(config.precision)
    chats.seat(named_models("models", config.models))
    tasks = load_tasks(config.dataset, split=config.split or None, limit=config.limit, seed=config.seed)
    chats.load()
    sampling, found = Sampling(config.max_new_tokens, config.temperature), Answers()
    for name, model in chats.seats.items():
        announce(f"{name} answers {len(tasks)} prompts", quiet=quiet)

        async def say(task: Task, model: Any = model) -> str:
            seed = seed_of(config.seed, "arena", repr(task.prompt))
            return (await model.chat(task.prompt, sampling=sampling, seed=seed)).text

        texts = finish(few_of(getattr(model, "at_once", 16), say, tasks))
        found[name] = {task.prompt: text for task, text in zip(tasks, texts, strict=True)}
    return found


def _judged(config: Arena, answers: Answers, *, quiet: bool) -> tuple[list[Compared], int]:
    """Every two policies on the prompts that both answered, and about how many comparisons the judge said nothing."""
    prompts = dict.fromkeys(prompt for said in answers.values() for prompt in said)
    tasks = {prompt: Task(prompt, id=f"{number}") for number, prompt in enumerate(prompts)}
    pairs = [(a, b, prompt) for a, b in combinations(answers, 2) for prompt in answers[a] if prompt in answers[b]]
    source = config.answers or config.dataset
    _, environment, judging = scoring(config, config.reward, lambda _: list(tasks.values()), source, "arena")
    announce(f"judging {len(pairs)} comparisons", quiet=quiet)
    with judging.kept_beside(Path(config.output or "arena")):
        said = verdicts(environment.reward, [(tasks[p], answers[a][p], answers[b][p]) for a, b, p in pairs])
    found = [
        Compared(a, b, verdict.win, (answers[a][p], answers[b][p]), p)
        for (a, b, p), verdict in zip(pairs, said, strict=True)
        if not isnan(verdict.margin)
    ]
    return found, len(pairs) - len(found)


def _written(one: Compared) -> dict[str, Any]:
    """A comparison as AlpacaEval writes it."""
    sides = {"output_1": one.texts[0], "output_2": one.texts[1], "generator_1": one.first, "generator_2": one.second}
    return {"instruction": written(one.prompt), **sides, "preference": 2 - one.share}


def _strengths(names: Sequence[str], compared: Sequence[Compared]) -> dict[str, tuple[float, float]]:
    number = {name: i for i, name in enumerate(names)}
    rankings: list[Ranking] = []
    for one in compared:
        first, second = (number[one.first],), (number[one.second],)
        order = {True: (first, second), False: (second, first)}[one.share > 0.5]
        rankings.append(Ranking("arena", "judge", ((*first, *second),) if one.share == 0.5 else order))
    belief = bradley_terry(rankings)["arena"]
    found = {name: (belief.strengths[i], belief.errors[i]) for name, i in number.items() if i in belief.strengths}
    return dict(sorted(found.items(), key=lambda one: -one[1][0]))
