"""Forms of the main job, plans and conversions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.option import POSITIONAL, Form, Range


@dataclass(frozen=True)
class Quickstart(Form):
    """Cold start, RL and held-out evaluation of the packaged model, on sums."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "demonstrations thinking_first thinking",
        "model": "model",
        "sampling": "prompts_per_step completions_per_prompt",
        "optimisation": "sft_epochs sft_batch sft_lr rl_steps rl_lr",
        "evaluation": "problems samples",
        "run": "seed",
    }
    model: str = "smollm2-135m-instruct"
    """Policy: hub id or folder. Or a packaged model."""
    dataset: str = "gym:chain_sum?min_terms=3&max_terms=4&min_digits=1&max_digits=1"
    """Tasks: chain_sum of Reasoning Gym; its options set the difficulty."""
    demonstrations: Annotated[int, Range(1)] = 960
    """Synthetic demonstrations for the cold start."""
    thinking_first: Annotated[float, Range(0, 1)] = 0.5
    """Leading fraction of demonstrations that all reason. They reason in tags before the answer."""
    thinking: Annotated[float, Range(0, 1)] = 0.15
    """Fraction of the later demonstrations that reason. The others answer at once."""
    slips: Annotated[float, Range(0, 1)] = 0.0
    """Fraction of reasoning steps with a wrong result that is then corrected."""
    sft_epochs: Annotated[int, Range(1)] = 1
    """Epochs over the demonstrations, in the same order."""
    sft_batch: Annotated[int, Range(1)] = 16
    """Demonstrations per batch."""
    sft_lr: Annotated[float, Range(0)] = 3e-5
    """Peak learning rate of the cold start."""
    rl_steps: Annotated[int, Range(1)] = 20
    """RL steps."""
    prompts_per_step: Annotated[int, Range(1)] = 12
    """Prompts per batch."""
    completions_per_prompt: Annotated[int, Range(2)] = 8
    """Completions per prompt (group size)."""
    rl_lr: Annotated[float, Range(0)] = 1.5e-5
    """Learning rate of RL."""
    problems: Annotated[int, Range(1)] = 160
    """Held-out problems per evaluation."""
    samples: Annotated[int, Range(1)] = 8
    """Samples per held-out problem."""
    base_problems: Annotated[int, Range(1)] = 16
    """Held-out problems for the base model. Fewer, since its completions are long and rarely correct."""
    seed: int = 0
    """Random seed."""

    def together(self) -> None:
        """There is a batch to learn from."""
        if (least := self.sft_epochs * self.demonstrations) < self.sft_batch:
            raise UserError(f"`demonstrations` must fill a batch of `sft_batch` {self.sft_batch}; got {least}")


@dataclass(frozen=True)
class PlanCluster(Form):
    """Plan a run on a cluster of GPUs: trainers, samplers, seconds and cost of a step."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model_parameters model",
        "sampling": "prompts_per_step completions_per_prompt prompt_tokens mean_tokens length_spread max_new_tokens",
        "optimisation": "microbatch_tokens max_staleness",
        "cluster": "gpu gpus price_per_gpu_hour weight_sync",
        "run": "plot",
    }
    model_parameters: Annotated[float, Range(1e6, 1e13, out="high")] = 7e9
    """Parameters of a dense decoder, such as 7e9. Its widths are those of the nearest published model."""
    model: str = ""
    """Model whose configuration is read instead; no weights are read. A hub id, folder or packaged model."""
    gpu: str = "h100"
    """Kind of GPU: a100, h100, h200 or h800."""
    gpus: Annotated[int, Range(1)] = 64
    """Number of GPUs."""
    prompts_per_step: Annotated[int, Range(1)] = 128
    """Prompts per batch."""
    completions_per_prompt: Annotated[int, Range(1)] = 16
    """Completions per prompt (group size)."""
    prompt_tokens: Annotated[int, Range(1)] = 512
    """Tokens per prompt."""
    mean_tokens: Annotated[float, Range(1)] = 2000.0
    """Mean tokens per completion; before they are cut at `max_new_tokens`."""
    length_spread: Annotated[float, Range(0, 3)] = 0.8
    """Standard deviation of log completion length. 0: all are alike."""
    max_new_tokens: Annotated[int, Range(1)] = 8192
    """Maximum tokens per completion."""
    microbatch_tokens: Annotated[int, Range(1)] = 16384
    """Maximum tokens per forward and backward pass."""
    max_staleness: Annotated[int, Range(0)] = 1
    """Maximum age of a trained group in updates. 0: synchronous only."""
    price_per_gpu_hour: Annotated[float, Range(0)] = 0.0
    """Price of a GPU-hour, 0: costs in GPU-hours."""
    weight_sync: Literal["broadcast", "channel"] = "broadcast"
    """Weight transfer: broadcast or channel. broadcast: between GPUs; channel: between hosts over gloo, as posttrain
    does."""
    logprob_passes: Annotated[float, Range(0)] = 0.0
    """Forward passes over a batch before its update: of a reference, a critic or a proximal policy."""
    scoring_seconds: Annotated[float, Range(0)] = 0.0
    """Seconds from a group's last completion to its rewards. Groups are scored at the same time."""
    tensor_parallel: Annotated[int, Range(0)] = 0
    """GPUs per sampler, 0: the fastest of the fewest that hold the model, and more of them up to 8."""
    max_sequences: Annotated[int, Range(1)] = 256
    """Maximum sequences that a sampler decodes together."""
    mfu: Annotated[float, Range(0, 1, out="low")] = 0.4
    """Model FLOP utilisation of training and prefill."""
    bandwidth_share: Annotated[float, Range(0, 1, out="low")] = 0.6
    """Share of the memory bandwidth that decoding reaches."""
    plot: str = ""
    """SVG file to draw: tokens per second by the number of trainers."""

    def together(self) -> None:
        """A sampler's GPUs divide heads, and a sequence fits in a pass."""
        if self.tensor_parallel.bit_count() > 1:
            raise UserError(
                f"`tensor_parallel` must be a power of two, as heads are divided; got {self.tensor_parallel}"
            )
        longest = self.prompt_tokens + self.max_new_tokens
        if longest > self.microbatch_tokens:
            raise UserError(
                f"prompt and completion may have {longest} tokens, which must fit in a pass; pass "
                f"`microbatch_tokens={longest}` or more"
            )


@dataclass(frozen=True)
class Convert(Form):
    """Convert feedback to another layout."""

    dataset: str = ""
    """Input: a file, folder, glob or hub id. In any layout of docs/data.md."""
    to: str = "pairs"
    """Output layout, such as pairs or demonstrations. One of pairs, conversations, transcripts, judgements and
    demonstrations."""
    output: str = ""
    """Output file (.jsonl)."""
    split: str = ""
    """Split of a folder or hub dataset; default: "train"."""
    columns: str = ""
    """Column mapping, such as "chosen=better rejected=worse"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    system: str | None = None
    """System message; replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each user message."""


@dataclass(frozen=True)
class ExportHF(Form):
    """Export to a Hugging Face folder with tokenizer, chat template and model card."""

    model: str = ""
    """Run, checkpoint, model or adapter folder to export. A run means its best checkpoint, or else its latest."""
    output: str = ""
    """Output folder; must not exist or be empty."""
    title: str = ""
    """Title of the model card; default: the folder's name."""


@dataclass(frozen=True)
class ExportMerge(ExportHF):
    """Merge a LoRA adapter into its base model; write weights, tokenizer, chat template and model card."""

    dtype: str = "auto"
    """Dtype of the weights: float32, bfloat16, or auto (the base's)."""


@dataclass(frozen=True)
class ExportAverage(Form):
    """Average the weights of several models of one shape, such as checkpoints of a run; write a model folder."""

    models: str = ""
    """Models to average, space-separated: runs, checkpoints or folders. Tokenizer and configuration are the first's."""
    weights: str = ""
    """Weight of each model, such as "0.5 0.3 0.2"; default: the same for all. Divided by their sum."""
    output: str = ""
    """Output folder; must not exist or be empty."""


@dataclass(frozen=True)
class Pipeline(Form):
    """Run the stages of a TOML file, each a command of its own that may read what earlier ones made."""

    file: Annotated[str, POSITIONAL] = ""
    """Pipeline: a TOML file, or a shipped one, such as r1. Shipped are cai, instructgpt, llama3, magistral, r1,
    r1-zero, rounds, self-rewarding, tulu3 and zephyr."""
    with_: tuple[str, ...] = ()
    """Values of the file's table [with], such as model=OWNER/NAME; may be given several times. `seed=1` is the seed of
    all stages that set none, evaluations excepted."""
