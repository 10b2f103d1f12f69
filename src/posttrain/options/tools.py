"""Forms of the main job, plans and conversions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Quickstart:
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
    demonstrations: int = 960
    """Synthetic demonstrations for the cold start."""
    thinking_first: float = 0.5
    """Leading fraction of demonstrations that all reason. They reason in tags before the answer."""
    thinking: float = 0.15
    """Fraction of the later demonstrations that reason. The others answer at once."""
    slips: float = 0.0
    """Fraction of reasoning steps with a wrong result that is then corrected."""
    sft_epochs: int = 1
    """Epochs over the demonstrations, in the same order."""
    sft_batch: int = 16
    """Demonstrations per batch."""
    sft_lr: float = 3e-5
    """Peak learning rate of the cold start."""
    rl_steps: int = 20
    """RL steps."""
    prompts_per_step: int = 12
    """Prompts per batch."""
    completions_per_prompt: int = 8
    """Completions per prompt (group size)."""
    rl_lr: float = 1.5e-5
    """Learning rate of RL."""
    problems: int = 160
    """Held-out problems per evaluation."""
    samples: int = 8
    """Samples per held-out problem."""
    base_problems: int = 16
    """Held-out problems for the base model. Fewer, since its completions are long and rarely correct."""
    seed: int = 0
    """Random seed."""


@dataclass(frozen=True)
class PlanCluster:
    """Plan a run on a cluster of GPUs: trainers, samplers, seconds and cost of a step."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model_parameters model",
        "sampling": "prompts_per_step completions_per_prompt prompt_tokens mean_tokens length_spread max_new_tokens",
        "optimisation": "microbatch_tokens max_staleness",
        "cluster": "gpu gpus price_per_gpu_hour weight_sync",
        "run": "plot",
    }
    model_parameters: float = 7e9
    """Parameters of a dense decoder, such as 7e9. Its widths are those of the nearest published model."""
    model: str = ""
    """Model whose configuration is read instead; no weights are read. A hub id, folder or packaged model."""
    gpu: str = "h100"
    """Kind of GPU: a100, h100, h200 or h800."""
    gpus: int = 64
    """Number of GPUs."""
    prompts_per_step: int = 128
    """Prompts per batch."""
    completions_per_prompt: int = 16
    """Completions per prompt (group size)."""
    prompt_tokens: int = 512
    """Tokens per prompt."""
    mean_tokens: float = 2000.0
    """Mean tokens per completion; before they are cut at --max-new-tokens."""
    length_spread: float = 0.8
    """Standard deviation of log completion length. 0: all are alike."""
    max_new_tokens: int = 8192
    """Maximum tokens per completion."""
    microbatch_tokens: int = 16384
    """Maximum tokens per forward and backward pass."""
    max_staleness: int = 1
    """Maximum age of a trained group in updates. 0: synchronous only."""
    price_per_gpu_hour: float = 0.0
    """Price of a GPU-hour, 0: costs in GPU-hours."""
    weight_sync: str = "broadcast"
    """Weight transfer: broadcast or channel. channel: samplers pass them on, as posttrain does."""
    logprob_passes: float = 0.0
    """Forward passes over a batch before its update: of a reference, a critic or a proximal policy."""
    scoring_seconds: float = 0.0
    """Seconds from a group's last completion to its rewards. Groups are scored at the same time."""
    tensor_parallel: int = 0
    """GPUs per sampler, 0: the fastest of the fewest that hold the model, and more of them up to 8."""
    max_sequences: int = 256
    """Maximum sequences that a sampler decodes together."""
    mfu: float = 0.4
    """Model FLOP utilisation of training and prefill."""
    bandwidth_share: float = 0.6
    """Share of the memory bandwidth that decoding reaches."""
    plot: str = ""
    """SVG file to draw: tokens per second by the number of trainers."""


@dataclass(frozen=True)
class Convert:
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
class ExportMerge:
    """Merge a LoRA adapter into its base model; write weights, tokenizer, chat template and model card."""

    model: str = ""
    """Run, checkpoint, or adapter folder to export. A run means its best checkpoint, or else its latest."""
    output: str = ""
    """Output folder; must not exist or be empty."""
    title: str = ""
    """Title of the model card; default: the folder's name."""
    dtype: str = "auto"
    """Dtype of the weights: float32, bfloat16, or auto (the base's)."""


@dataclass(frozen=True)
class ExportHF:
    """Export to a Hugging Face folder with tokenizer, chat template and model card."""

    model: str = ""
    """Run, checkpoint, model or adapter folder to export. A run means its best checkpoint, or else its latest."""
    output: str = ""
    """Output folder; must not exist or be empty."""
    title: str = ""
    """Title of the model card; default: the folder's name."""
