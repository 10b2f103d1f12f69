"""Forms of the commands that look at models, rewards and data."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.groups import Ensemble, Judges, Playing, Rendering, TemplateArgs
from posttrain.options.judging import Scores
from posttrain.options.kinds import EngineName, Judge, Model, Rewards, Rows
from posttrain.options.option import Form, Range, given, options_of

SAMPLES = 8  # of each task, by default
MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Evaluate(Judges, Playing, Rendering):
    """Accuracy of a model on held-out tasks, with confidence intervals."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset suite environment split columns limit exclude system",
        "model": "model baseline precision",
        "rewards": "reward judge",
        "sampling": "greedy samples pass_at temperature max_new_tokens engine",
        "run": "seed",
    }
    dataset: Rows = ""
    """Held-out tasks: a file, folder, glob, hub id, or gym:NAME?option=value. Of gym: sources, the held-out split. With
    `suite`: where its data is; of several suites, a folder with a file or folder of each one's name."""
    model: Model = "smollm2-135m-instruct"
    """Model: hub id, folder or run. A run means its best checkpoint, or else its latest; checkpoints, adapters and
    packaged models work too."""
    _: KW_ONLY
    baseline: Model = ""
    """Model to compare with on the same tasks (paired difference). Such as the one before training."""
    reward: Rewards = ""
    """Rewards, such as "numbers" or FILE.py:NAME; the first verifier decides. Default for gym: sources: gym."""
    seats: Judge = ""
    """Models that play other seats of the environment: NAME=MODEL, NAME=URL#MODEL or NAME=FILE.py:CLASS. Such as
    "opponent=runs/rl-2026-01-31-1 judge=http://localhost:8000/v1#MODEL"; they are not trained. Default: the policy
    plays all seats."""
    max_lost: Annotated[float, Range(0, 1)] = 0.1
    """Maximum fraction of failed episodes; above it the evaluation stops. Failed episodes are in no denominator."""
    greedy: bool = False
    """Greedy decoding, one completion per task. No sampling unless `samples` is given."""
    samples: Annotated[int | None, Range(1)] = None
    """Samples per task; default: 8, and a greedy one. With `samples` alone nothing is decoded greedily."""
    temperature: Annotated[float, Range(0, out="low", hint="for the most likely completion pass `greedy`")] = 1.0
    """Sampling temperature."""
    max_new_tokens: Annotated[int | None, Range(1)] = None
    """Maximum tokens per completion; default: 256, or the suite's. Truncated ones are counted."""
    max_prompt_tokens: int | None = None
    """Leave out longer prompts, and count them. Default: a prompt beyond the model's context is an error."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "test"."""
    limit: int | None = None
    """Maximum number of tasks; for gym: sources, the number to generate (default 200)."""
    exclude: Rows = ""
    """Training data to decontaminate against. Its tasks are left out, and counted."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    engine: EngineName = "embedded"
    """Engine: embedded, vllm, or a server's URL. vllm must be installed; the server is vLLM's."""
    cache_gb: Annotated[float, Range(0, out="low", infinite=True)] = 1.5
    """KV cache size, in GB."""
    seed: int = 0
    """Random seed of sampling and of gym: tasks."""
    suite: str = ""
    """Benchmarks, such as "gsm8k mbpp"; space-separated. gsm8k, math500, humaneval, mbpp, ifeval, processbench,
    lm-eval:TASK, FILE.py:CLASS: each has tasks, prompt, reward and measures of its own. Options at their defaults are
    the suite's."""
    pass_at: str = ""
    """Numbers of samples k of which one must be right (pass@k), such as 1,8,64,256. Unbiased; `samples` is the largest
    unless given."""

    @property
    def ks(self) -> list[int]:
        """The numbers of samples of `pass_at`, in order."""
        words = self.pass_at.replace(",", " ").split()
        if wrong := next((word for word in words if not (word.isascii() and word.isdecimal() and int(word))), ""):
            raise UserError(f"`pass_at` has whole numbers of 1 or more between commas, such as 1,8,64; got '{wrong}'")
        return sorted({int(word) for word in words})

    def together(self) -> None:
        """Samples are enough for each k; a suite has tasks of its own."""
        super().together()
        if self.ks and self.greedy and self.samples is None:
            raise UserError("`pass_at` is of samples, and greedy answers do not vary; leave out `greedy`")
        if self.ks and self.samples is not None and self.samples < self.ks[-1]:
            raise UserError(f"pass@{self.ks[-1]} needs `samples={self.ks[-1]}` or more; got {self.samples}")
        if self.suite and given(self.environment):
            raise UserError("`suite` and `environment` exclude each other; pass one of them")

    def decodings(self) -> dict[str, tuple[int, float]]:
        """Decoding modes by name: the number of completions per task, and the temperature."""
        both = not self.greedy and self.samples is None and not self.ks
        found: dict[str, tuple[int, float]] = {}
        if both or self.ks or self.samples is not None:
            most = self.ks[-1] if self.ks else SAMPLES
            found["sampled"] = (most if self.samples is None else self.samples, self.temperature)
        if both or self.greedy:
            found["greedy"] = (1, 0.0)
        return found


@dataclass(frozen=True)
class Compare(Evaluate):
    """A model and a baseline on the same held-out tasks: `evaluate` whose baseline is required."""

    def together(self) -> None:
        """There is something to compare with."""
        super().together()
        if not given(self.baseline):
            raise UserError("`baseline` is required: the model to compare with, such as the one before training")


@dataclass(frozen=True)
class Solve(Evaluate, Ensemble):
    """Test-time compute: what more samples of a problem buy, by votes, scores, or search by steps."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "beams": ("reward_model", "a process reward model; name it with `reward_model`"),
        "expansions": ("beams", "`beams`; pass it too"),
        "lookahead": ("beams", "`beams`; pass it too"),
    }
    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment split columns limit exclude system",
        "model": "model precision",
        "rewards": "reward reward_model",
        "sampling": "samples beams expansions lookahead temperature max_new_tokens certainty engine",
        "run": "seed",
    }
    _: KW_ONLY
    samples: Annotated[int, Range(2)] = 16
    """Samples of each problem, from which all ways choose."""
    reward_model: str = ""
    """Reward models that choose: runs, folders or hub ids. Space-separated; of responses or of steps."""
    certainty: Annotated[float, Range(0.5, 1, out="high")] = 0.95
    """Certainty of a majority that ends sampling. How likely it stays one, however many samples follow."""
    beams: Annotated[int, Range(0)] = 0
    """Beam search: candidates of each step, 0: off. Scored by a process reward model. Half as many and so on, down to
    `expansions`, are searched too."""
    expansions: Annotated[int, Range(2)] = 4
    """Beam search: continuations of each step that is kept. The best `beams` / `expansions` of its candidates are."""
    lookahead: Annotated[int, Range(0)] = 0
    """Beam search: greedy steps behind which a step is scored. Compared with the search without them."""

    def together(self) -> None:
        """A search keeps one step at least, and is of single answers."""
        super().together()
        if self.beams and self.expansions > self.beams:
            raise UserError(
                f"`beams` must be at least `expansions`, {self.expansions}; got {self.beams}; type `beams=16`, or a "
                "smaller `expansions`"
            )
        if self.beams and given(self.environment):
            raise UserError("`beams` searches for single answers, and `environment` may have several turns; drop one")


@dataclass(frozen=True)
class EvaluateReward(Form):
    """Accuracy and calibration of a reward model on held-out pairs."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset ties split columns limit exclude max_tokens system prompt_template",
        "model": "model baseline precision microbatch_tokens",
    }
    dataset: Rows = ""
    """Held-out pairs or labelled steps: a file, folder, glob or hub id. In any layout that training reads; a process
    reward model needs steps."""
    model: Model = ""
    """Reward model: run, checkpoint, folder or hub id. A run means its best checkpoint, or else its latest."""
    _: KW_ONLY
    ties: Rows = ""
    """Tied pairs (rows with `tie`). A file as annotate export writes it with `to="ties"`."""
    baseline: Model = ""
    """Reward model to compare with on the same pairs (paired difference)."""
    max_tokens: Annotated[int, Range(1)] = 2048
    """Maximum tokens of prompt and response. Pairs with a longer one are left out, and counted."""
    columns: str = ""
    """Column mapping, such as "chosen=better rejected=worse"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "test"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    exclude: Rows = ""
    """Training pairs to decontaminate against. Their prompts are left out, and counted."""
    system: str | None = None
    """System message; use the training one. Replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each user message; use the training one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    microbatch_tokens: Annotated[int, Range(1)] = 4096
    """Maximum tokens per forward pass."""


@dataclass(frozen=True)
class Generate(Playing, Rendering):
    """Sample completions of prompts, hold a chat, or play episodes of an environment."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "prompt prompts environment system",
        "model": "model precision",
        "sampling": "chat n greedy temperature top_k top_p max_new_tokens engine",
        "run": "seed",
    }
    model: Model = "smollm2-135m-instruct"
    """Model: hub id, folder or run. A run means its best checkpoint, or else its latest; checkpoints, adapters and
    packaged models work too."""
    _: KW_ONLY
    prompt: str = ""
    """Prompt; default: standard input."""
    prompts: Rows = ""
    """File of prompts: .txt with one per line, or a dataset. As `dataset` of posttrain rl."""
    seats: Judge = ""
    """Players of other seats of the environment: NAME=MODEL, NAME=URL#MODEL or NAME=human. human: you play, in this
    terminal. Default: the model plays all seats."""
    limit: Annotated[int, Range(1)] = 3
    """Maximum number of tasks in which episodes are played, with `environment`."""
    n: Annotated[int, Range(1)] = 1
    """Completions per prompt, or episodes per task."""
    greedy: bool = False
    """Greedy decoding, one completion per prompt."""
    temperature: Annotated[float, Range(0, out="low", hint="for the most likely completion pass `greedy`")] = 1.0
    """Sampling temperature; RL trains at 1 by default."""
    top_k: Annotated[int, Range(0)] = 0
    """Top-k sampling, 0: off."""
    top_p: Annotated[float, Range(0, 1, out="low")] = 1.0
    """Nucleus (top-p) sampling, 1: off."""
    max_new_tokens: Annotated[int, Range(1)] = 256
    """Maximum tokens per completion."""
    chat: bool = False
    """Chat: each line of standard input is a turn. An empty line ends it."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    engine: EngineName = "embedded"
    """Engine: embedded, vllm, or a server's URL. vllm must be installed; the server is vLLM's."""
    cache_gb: Annotated[float, Range(0, out="low", infinite=True)] = 1.5
    """KV cache size, in GB."""
    seed: int = 0
    """Random seed of sampling."""


@dataclass(frozen=True)
class ScoreCompletions(Scores):
    """Score given completions by any reward."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns split limit output",
        "rewards": "reward reward_model ensemble_aggregation judge judge_prompt",
        "run": "precision seed",
    }
    dataset: Rows = ""
    """Completions: a file, folder, glob, hub id or run. With the columns prompt or messages, completion, answer and
    optionally id; of a run, its samples.jsonl."""
    reward: Rewards = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME."""
    output: str = ""
    """Output file (.jsonl) of rows with scores and explanations."""


@dataclass(frozen=True)
class DataShow(Rendering):
    """Show a dataset as a model sees it: tokens, loss mask, lengths, and what is left out."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset layout rows first tokens columns split limit max_tokens train_on system",
        "model": "model",
        "evaluation": "eval_dataset eval_share",
        "run": "seed",
    }
    dataset: Rows = ""
    """Dataset: a file, folder, glob, hub id, gym:NAME, or mixture. Such as "a.jsonl=0.7 b.parquet=0.3"."""
    model: Model = "smollm2-135m-instruct"
    """Model of the tokenizer: hub id, folder, run. Or a packaged model. Its chat template is used."""
    _: KW_ONLY
    layout: str = "auto"
    """Layout: sft, preference, judgements (kto), rl, or auto. auto: by the columns of the first row."""
    rows: Annotated[int, Range(0)] = 3
    """Rows to show in full; 0: the summary only."""
    first: Annotated[int, Range(1)] = 1
    """Number of the first row to show, from 1."""
    tokens: bool = False
    """List the tokens of the rows shown, one per line with ids."""
    max_tokens: Annotated[int, Range(1)] = 1024
    """Maximum tokens per example; longer ones are left out, as in training. For rl: per prompt."""
    train_on: Literal["all", "last"] = "all"
    """Assistant turns in the SFT loss: all or last. last: of each conversation."""
    columns: str = ""
    """Column mapping, such as "prompt=question completion=response"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "train"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    eval_dataset: Rows = ""
    """Held-out rows; overlap with the dataset is counted by prompt."""
    eval_share: Annotated[float, Range(0, 1, out="high")] = 0.0
    """Fraction of rows to hold out. Alternative to `eval_dataset`."""
    seed: int = 0
    """Random seed of mixture sampling and of the held-out split."""


@dataclass(frozen=True)
class Verify(TemplateArgs):
    """Check the correctness contract on your model and machine."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model precision lora_rank",
        "sampling": "temperature prompts completions_per_prompt max_new_tokens",
        "run": "import_ resume_steps without seed",
    }
    model: str = "smollm2-135m-instruct"
    """Model to check: hub id or folder. Or an adapter folder or packaged model."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    temperature: Annotated[float, Range(0, out="low")] = 0.7
    """Second sampling temperature to check, besides 1."""
    prompts: Annotated[int, Range(1, 4)] = 2
    """Number of prompts, 1 to 4."""
    completions_per_prompt: Annotated[int, Range(2)] = 3
    """Completions per prompt, 2 or more."""
    max_new_tokens: Annotated[int, Range(2)] = 16
    """Maximum tokens per completion."""
    lora_rank: Annotated[int, Range(1)] = 4
    """LoRA rank of the adapter checks."""
    resume_steps: Annotated[int, Range(4)] = 6
    """Steps of the run that is killed and resumed, 4 or more."""
    without: str = ""
    """Fast paths to disable, or all. Such as "shared prefix,lean head"; listed in docs/performance.md."""
    seed: int = 0
    """Random seed of sampling and of the kill."""
    import_: str = ""
    """Another trainer's rollouts to check, not a model: file or folder. Its layout: docs/verify-dumps.md."""

    def together(self) -> None:
        """Rollouts are checked without a model."""
        super().together()
        if self.import_ and (others := [name for name in options_of(Verify) if name != "import_" and self.says(name)]):
            raise UserError(f"`import_` checks rollouts without a model; leave out `{others[0]}`")
