"""Tasks of EleutherAI's LM Evaluation Harness, by the harness itself: our engine answers behind its `LM`.

    posttrain evaluate --model runs/sft-2026-01-31-1 --suite "lm-eval:hellaswag lm-eval:tasks/mine.yaml?num_fewshot=5"

Its prompts, metrics and standard errors are its own. It executes nothing that a model wrote: its tasks that would are
refused. It is an extra: pip install 'posttrain[lm-eval]'.
"""

import importlib.util
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any, cast

from posttrain.bindings.judges import JudgeModels
from posttrain.engine.chat_models import scored
from posttrain.engine.policy import Policy
from posttrain.errors import UserError, described, unknown
from posttrain.evaluation.accuracy import Accuracy, Examination
from posttrain.evaluation.suite import Measure
from posttrain.options.evaluation import Evaluate
from posttrain.recipes.evaluate.suites import LM_EVAL, Asked
from posttrain.statistics import mean_interval
from posttrain.training.resolve_model import SavedModel, saved_model
from posttrain.types import Group, Request, Sampling, Task
from posttrain.user_code import fitted

if TYPE_CHECKING:
    from posttrain.recipes.evaluate import Watched

Z95 = NormalDist().inv_cdf(0.975)
IGNORED = ("dataset", "split", "columns", "exclude", "reward", "judge", "samples", "pass_at", "temperature")
LONGEST = 256  # tokens of a completion, unless its task or the options say it


@dataclass(frozen=True)
class Harness:
    """A task or a group of tasks of the harness, that is there."""

    asked: Asked
    task: str
    arguments: Mapping[str, Any]  # of `lm_eval.simple_evaluate`
    manager: Any
    models: list[SavedModel]
    notes: tuple[str, ...] = ()
    judging: JudgeModels = field(default_factory=JudgeModels)
    answers: int = 0  # that the progress bar counts: the harness has its own

    def opened(self) -> AbstractContextManager[None]:
        """Nothing has to be open."""
        return nullcontext()

    def examine(self, saved: SavedModel, policy: Policy, watched: "Watched") -> Examination:
        """What the harness says of a model."""
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

        harness: Any = importlib.import_module("lm_eval")
        config = self.asked.config
        model = cast(Any, type("Posttrain", (_Answers, LM), {}))(policy, config, watched.progress.tokens)
        model.chat = bool(self.arguments.get("apply_chat_template"))
        seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
        with watched.progress.phase(self.asked.name):
            found = harness.simple_evaluate(
                model=model,
                tasks=[self.task],
                task_manager=self.manager,
                limit=config.limit,
                bootstrap_iters=1000,
                **dict.fromkeys(seeds, config.seed),
                **self.arguments,
            )
        return Examination(saved.title, greedy=accuracy_of(self.task, cast("Mapping[str, Any]", found)))

    def judged(self, examinations: Sequence[Examination]) -> tuple[list[Examination], str]:
        """As they are."""
        return list(examinations), ""


def prepare(asked: Asked) -> Harness:
    """A task of the harness; raises `UserError` unless it and its data are there."""
    ignored = [f"`{name}`" for name in IGNORED if asked.alone and asked.config.says(name)]
    if ignored:
        what = ", ".join(ignored)
        raise UserError(f"the suite '{asked.name}' is asked by lm-eval, which has no {what}; leave it out")
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError(f"the suite '{asked.name}' needs the package lm_eval; type: pip install 'posttrain[lm-eval]'")
    from lm_eval.tasks import TaskManager, get_task_dict  # pyright: ignore[reportMissingImports]

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    task, _, words = asked.name.removeprefix(LM_EVAL).partition("?")
    pairs = {key: value for key, _, value in (word.partition("=") for word in words.split("&") if word)}
    arguments = fitted(f"the suite '{asked.name}'", _arguments, pairs)
    file = Path(task).expanduser()
    if file.suffix in (".yaml", ".yml"):
        if not file.is_file():
            raise UserError(f"there is no file '{task}', the task of the suite '{asked.name}'")
        named = re.search(r"^task:\s*[\"']?([^\s\"'#]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        if named is None:
            raise UserError(f"{task} names no task; expected a line 'task: NAME', as the harness reads it")
        manager, task = TaskManager(include_path=str(file.parent)), named[1]
    else:
        manager = TaskManager()
    if task not in manager.all_tasks:
        raise unknown("task of lm-eval", task, manager.all_tasks, see="lm_eval ls tasks lists them")
    try:
        tasks = list(_tasks(get_task_dict([task], manager)))
    except Exception as error:  # the network, the hub, and what a task's file says
        raise UserError(f"the task '{task}' of lm-eval cannot be loaded: {described(error)}") from error
    for what, flag in (("executes what a model wrote", "UNSAFE_CODE"), ("is not of text alone", "MULTIMODAL")):
        if any(getattr(one, flag, False) for one in tasks):
            raise UserError(f"the task '{task}' of lm-eval {what}, which no option allows; leave it out")
    models = [saved_model(name) for name in (asked.config.model, *filter(None, [asked.config.baseline]))]
    return Harness(asked, task, arguments, manager, models)


def _tasks(found: Mapping[Any, Any]) -> Iterator[Any]:
    """The tasks of groups of groups."""
    for one in found.values():
        yield from _tasks(one) if isinstance(one, Mapping) else [one]


def _arguments(num_fewshot: int | None = None, apply_chat_template: bool = False) -> None:
    """What a suite's name may say of how its task is asked."""


def accuracy_of(task: str, found: Mapping[str, Any]) -> Accuracy:
    """The first metric of a task, or of a group, as the headline; its others, and those of its parts, beside."""
    measures = [
        Measure(
            f"{metric} {name}".strip(),
            _interval(value, error, values),
            values,
            rate=all(0 <= rate <= 1 for rate in values),
        )
        for one, results in found["results"].items()
        for name in ["" if one == task else one]
        for metric, value, error in _metrics(results)
        for values in [_values(found, one, metric, value)]
    ]
    if not measures:
        raise UserError(f"the task '{task}' of lm-eval gives no number")
    first = next((one for one in measures if " " not in one.name), measures[0])
    sizes = [int(size["effective"]) for size in found.get("n-samples", {}).values()]
    return Accuracy(
        accuracy=first.value,
        ci95=first.ci95,
        n=sum(sizes) or len(first.values),
        samples_per_task=1,
        greedy=True,
        pass_at={},
        unparsed=math.nan,
        truncated=math.nan,
        mean_tokens=math.nan,
        rates=first.values,
        groups=tuple(Group(task=Task((), id=f"{task}/{number}"), rows=()) for number in range(len(first.values))),
        measure=first.name,
        measures=tuple(one for one in measures if one is not first),
    )


def _metrics(results: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, value and standard error of each number; `none` is the filter of answers that are taken as they are."""
    for key, value in results.items():
        metric, _, kept = key.partition(",")
        if kept and not metric.endswith("_stderr") and isinstance(value, int | float):
            error = results.get(f"{metric}_stderr,{kept}")
            yield (
                metric if kept == "none" else f"{metric},{kept}",
                value,
                error if isinstance(error, float) else math.nan,
            )


def _interval(value: float, error: float, values: Sequence[float]) -> tuple[float, float]:
    """Ours of rates of documents, since four right ones of four are no certainty; else that of the standard error."""
    if len(values) > 1 and all(0 <= rate <= 1 for rate in values):
        return mean_interval(values)
    half = 0.0 if math.isnan(error) else Z95 * error
    return value - half, value + half


def _values(found: Mapping[str, Any], task: str, metric: str, value: float) -> tuple[float, ...]:
    """The metric of each document, if it is their mean: what is paired with a baseline's."""
    name, _, kept = metric.partition(",")
    samples = [s for s in found.get("samples", {}).get(task, []) if s.get("filter", "none") == (kept or "none")]
    values = [s[name] for s in sorted(samples, key=lambda s: s["doc_id"]) if isinstance(s.get(name), int | float)]
    return tuple(map(float, values)) if values and math.isclose(fmean(values), value, abs_tol=1e-9) else (value,)


class _Answers:
    """The methods of the harness's `LM`, answered by a policy's engine."""

    chat = False  # whether contexts are conversations, rendered by the chat template

    def __init__(self, policy: Policy, config: Evaluate, on_tokens: Any) -> None:
        super().__init__()
        self._policy, self._tokenizer, self._on_tokens = policy, cast(Any, policy.chat.tokenizer), on_tokens
        self._longest = config.max_new_tokens or LONGEST
        self._room = policy.model.context - 1  # tokens of a request
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        self._begins = [bos] if bos is not None and bos in self._tokenizer.encode("") else []
        self._start = eos if bos is None else bos  # in front of a text without a context

    def _encode(self, text: str) -> list[int]:
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        return ids if self.chat else [*self._begins, *ids]

    def _generate(self, requests: Sequence[Request]) -> list[Any]:
        return self._policy.engine.generate(requests, self._on_tokens) if requests else []

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Of each (context, continuation) its logprob in nats, and whether greedy decoding says it."""
        pairs = [self._pair(*request.args) for request in requests]
        asked = [Request((*context, *rest), Sampling(1), scored_from=len(context)) for context, rest in pairs]
        sums = [math.fsum(values) for values in scored(asked, self._generate(asked))]
        longest: dict[tuple[int, ...], int] = {}
        for context, rest in pairs:
            longest[context] = max(longest.get(context, 0), len(rest))
        greedy = [Request(context, Sampling(size, temperature=0.0)) for context, size in longest.items()]
        says = {one.token_ids: done.token_ids for one, done in zip(greedy, self._generate(greedy), strict=True)}
        return [(value, says[context][: len(rest)] == rest) for value, (context, rest) in zip(sums, pairs, strict=True)]

    def _pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Both as tokens of the whole text; white space between them is the continuation's."""
        kept = context.rstrip()
        alone = [self._start, *self._tokenizer.encode(context + continuation, add_special_tokens=False)]
        whole = self._encode(context + continuation) if kept else alone
        size = min(len(self._encode(kept)) if kept else 1, len(whole) - 1)
        cut = max(0, len(whole) - self._room)  # the oldest tokens, where the context is full
        return tuple(whole[cut : max(size, cut + 1)]), tuple(whole[max(size, cut + 1) :])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Of each text the logprob of all its tokens, each behind as many as the context holds."""
        asked: list[tuple[int, Request]] = []
        for number, request in enumerate(requests):
            ids = [self._start, *self._tokenizer.encode(request.args[0], add_special_tokens=False)]
            for begin in range(1, len(ids), self._room - 1):
                end = min(begin + self._room - 1, len(ids))
                window = tuple(ids[max(0, end - self._room) : end])
                asked.append((number, Request(window, Sampling(1), scored_from=len(window) - (end - begin))))
        totals, windows = [0.0] * len(requests), [request for _, request in asked]
        for (number, _window), values in zip(asked, scored(windows, self._generate(windows)), strict=True):
            totals[number] += math.fsum(values)
        return totals

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """A completion of each context, up to the first of its stop strings."""
        asked: list[Request] = []
        for number, request in enumerate(requests):
            context, said = request.args
            until = said.get("until") or []
            stop = tuple(filter(None, [until] if isinstance(until, str) else until))
            ids = self._encode(context)
            # before the prompt the answer gives way, down to half of the context: some tasks ask for 32768 tokens
            room = max(self._room - len(ids), self._room // 2)
            most = min(int(said.get("max_gen_toks", self._longest)), room)
            temperature = float(said.get("temperature") or 0.0) if said.get("do_sample", True) else 0.0
            sampling = Sampling(most, temperature, int(said.get("top_k") or 0), float(said.get("top_p") or 1.0), stop)
            asked.append(Request(tuple(ids[-(self._room - most) :]), sampling, seed=number))
        texts = [self._policy.chat.decode(done.token_ids) for done in self._generate(asked)]
        for number, one in enumerate(asked):
            for stop in one.sampling.stop:
                texts[number] = texts[number].partition(stop)[0]
        return texts

    @property
    def tokenizer_name(self) -> str:
        """The policy's."""
        return self._policy.model.name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        words = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return str(self._tokenizer.apply_chat_template(chat_history, tokenize=False, **words))
