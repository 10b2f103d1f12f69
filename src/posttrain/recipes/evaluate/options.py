"""Options of an evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posttrain.setup.sampling_options import JudgeOptions

SAMPLES = 8  # of each task, by default


@dataclass(frozen=True)
class Evaluate(JudgeOptions):
    """Accuracy of a model on held-out tasks, with confidence intervals."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment split columns limit exclude system",
        "model": "model baseline precision",
        "rewards": "reward judge",
        "sampling": "greedy samples temperature max_new_tokens engine",
        "run": "seed",
    }
    dataset: str = ""
    """Held-out tasks: a file, folder, glob, hub id, or gym:NAME?option=value. Of gym: sources, the held-out split."""
    model: str = "smollm2-135m-instruct"
    """Model: hub id, folder or run. A run means its best checkpoint, or else its latest; checkpoints, adapters and
    packaged models work too."""
    baseline: str = ""
    """Model to compare with on the same tasks (paired difference). Such as the one before training."""
    reward: str = ""
    """Rewards, such as "numbers" or FILE.py:NAME; the first verifier decides. Default for gym: sources: gym."""
    environment: str = ""
    """Multi-turn environment: FILE.py:CLASS or installed name. Default: single-turn. Without --dataset, its own
    held-out tasks; without --reward, its own reward."""
    environment_args: str = ""
    """Arguments of the environment, such as "size=100 max_turns=6"."""
    seats: str = ""
    """Models that play other seats of the environment: NAME=MODEL or NAME=URL#MODEL. Such as
    "opponent=runs/rl-2026-01-31-1 judge=http://localhost:8000/v1#MODEL"; they are not trained. Default: the policy
    plays all seats."""
    max_lost: float = 0.1
    """Maximum fraction of failed episodes; above it the evaluation stops. Failed episodes are in no denominator."""
    greedy: bool = False
    """Greedy decoding, one completion per task. No sampling unless --samples is given."""
    samples: int | None = None
    """Samples per task; default: 8, and a greedy one. With --samples alone nothing is decoded greedily."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_new_tokens: int = 256
    """Maximum tokens per completion; truncated ones are counted."""
    max_prompt_tokens: int | None = None
    """Leave out longer prompts, and count them. Default: a prompt beyond the model's context is an error."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "test"."""
    limit: int | None = None
    """Maximum number of tasks; for gym: sources, the number to generate (default 200)."""
    exclude: str = ""
    """Training data to decontaminate against. Its tasks are left out, and counted."""
    system: str | None = None
    """System message; use the training one. Replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each question; use the training one."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    engine: str = "embedded"
    """Engine: embedded, vllm, or a server's URL. vllm must be installed; the server is vLLM's."""
    cache_gb: float = 1.5
    """KV cache size, in GB."""
    seed: int = 0
    """Random seed of sampling and of gym: tasks."""

    def decodings(self) -> dict[str, tuple[int, float]]:
        """Decoding modes by name: the number of completions per task, and the temperature."""
        both = not self.greedy and self.samples is None
        found: dict[str, tuple[int, float]] = {}
        if both or self.samples is not None:
            found["sampled"] = (SAMPLES if self.samples is None else self.samples, self.temperature)
        if both or self.greedy:
            found["greedy"] = (1, 0.0)
        return found
