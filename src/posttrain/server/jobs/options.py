"""The options of commands that a client may set: names, kinds and ranges. Every other option is refused.

None of these names a file, a module, a host or another model, and none lets a job write outside its folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.errors import UserError, unknown

COMMANDS = ("rl", "sft", "preference", "reward-model")

_WORDS = re.compile(r"[\w. ]{1,500}", re.ASCII)
_KNOB = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`.

    Attributes:
        whole: whether it must be a whole number.
    """

    least: float
    most: float
    whole: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for another value."""
        fits = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        if not fits or not self.least <= value <= self.most:  # nan is not, either
            kind = "a whole number" if self.whole else "a number"
            raise UserError(f"'{name}' must be {kind} from {self.least:g} to {self.most:g}; got {_shown(value)}")


@dataclass(frozen=True)
class Switch:
    """True or false."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for another value."""
        if not isinstance(value, bool):
            raise UserError(f"'{name}' must be true or false; got {_shown(value)}")


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for another value."""
        if not isinstance(value, str) or value not in self.words:
            raise UserError(f"'{name}' must be one of {', '.join(self.words)}; got {_shown(value)}")


@dataclass(frozen=True)
class Words:
    """Letters, digits and _ . in words, such as names of layers."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for another value."""
        if not isinstance(value, str) or not _WORDS.fullmatch(value):
            raise UserError(f"'{name}' has 1 to 500 letters, digits, _ . and spaces; got {_shown(value)}")


@dataclass(frozen=True)
class Text:
    """Text for the model, without control characters."""

    most: int = 20_000

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for another value."""
        if not isinstance(value, str) or len(value) > self.most or _CONTROL.search(value):
            raise UserError(f"'{name}' must be text of at most {self.most} characters, none of them control characters")


Kind = Number | Switch | Choice | Words | Text

_TRAINING: Mapping[str, Kind] = {
    "steps": Number(1, 1_000_000, whole=True),
    "seed": Number(0, 2**31 - 1, whole=True),
    "lr": Number(0, 1),
    "warmup_steps": Number(0, 100_000, whole=True),
    "decay": Choice(("constant", "linear", "cosine")),
    "weight_decay": Number(0, 1),
    "max_grad_norm": Number(1e-6, 1e6),
    "optim": Choice(("adamw", "adamw-8bit")),
    "offload_optimizer": Switch(),
    "gradient_checkpointing": Switch(),
    "lora_rank": Number(0, 256, whole=True),
    "lora_alpha": Number(0, 4096),
    "lora_dropout": Number(0, 1),
    "lora_targets": Words(),
    "lora_rslora": Switch(),
    "lora_dora": Switch(),
    "lora_modules_to_save": Words(),
    "precision": Choice(("auto", "float32", "bfloat16")),
    "microbatch_tokens": Number(1, 1_048_576, whole=True),
    "limit": Number(1, 10_000_000, whole=True),
    "system": Text(),
    "prompt_template": Text(),
    "eval_every": Number(0, 1_000_000, whole=True),
    "eval_limit": Number(1, 10_000, whole=True),
    "stop_after": Number(0, 1000, whole=True),
    "save_every": Number(1, 1_000_000, whole=True),
    "keep_last": Number(1, 5, whole=True),
}
_ROWS: Mapping[str, Kind] = {
    "epochs": Number(0.001, 1000),
    "max_tokens": Number(1, 131_072, whole=True),
    "eval_share": Number(0, 0.9),
}
_PAIRS: Mapping[str, Kind] = {"pairs_per_step": Number(1, 4096, whole=True)}

ALLOWED: Mapping[str, Mapping[str, Kind]] = {
    "rl": {
        **_TRAINING,
        "algorithm": Choice(
            (
                *("grpo", "dr-grpo", "dapo", "gspo", "grpo-bucketed", "reinforce", "reinforce++", "rloo", "remax"),
                *("ppo", "ppo-penalty", "vapo", "vineppo"),
            )
        ),
        "prompts_per_step": Number(1, 4096, whole=True),
        "completions_per_prompt": Number(1, 256, whole=True),
        "max_new_tokens": Number(1, 65_536, whole=True),
        "max_prompt_tokens": Number(1, 131_072, whole=True),
        "temperature": Number(0.01, 10),
        "eval_samples": Number(1, 256, whole=True),
        "max_refills": Number(0, 20, whole=True),
        "updates_per_step": Number(1, 64, whole=True),
        "length_penalty": Number(0, 1000),
        "ref_sync_every": Number(0, 1_000_000, whole=True),
        "tis_cap": Number(0, 1000),
        "kl_budget": Number(0, 1e6),
        "critic": Choice(("trunk", "own")),
        "critic_lr": Number(0, 1),
    },
    "sft": {
        **_TRAINING,
        **_ROWS,
        "examples_per_step": Number(1, 4096, whole=True),
        "train_on": Choice(("all", "last")),
    },
    "preference": {
        **_TRAINING,
        **_ROWS,
        **_PAIRS,
        "algorithm": Choice(("dpo", "ipo", "kto", "orpo", "simpo", "dpop", "tdpo", "step-dpo", "irpo", "sppo")),
    },
    "reward-model": {
        **_TRAINING,
        **_ROWS,
        **_PAIRS,
        "label_smoothing": Number(0, 0.5),
        "margin": Number(0, 1000),
        "center_rewards": Number(0, 1000),
        "ensemble": Number(1, 16, whole=True),
        "length_debias": Number(0, 1000),
    },
}


def check_options(command: str, options: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option that a client may not set, or a value out of its range."""
    allowed = ALLOWED[command]
    for name, value in options.items():
        if name not in allowed:
            raise unknown(f"option of {command} jobs:", name[:80], allowed)
        allowed[name].check(name, value)


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Raise `UserError` for hyperparameters of an algorithm that are no numbers, switches or plain words."""
    for name, value in knobs.items():
        if not _KNOB.fullmatch(name):
            raise UserError(f"a hyperparameter's name has small letters, digits and _; got '{name[:80]}'")
        if isinstance(value, str):
            if not _KNOB.fullmatch(value):
                raise UserError(f"'{name}' must be a number, true or false, or a word; got {_shown(value)}")
        elif not isinstance(value, bool):
            Number(-1e12, 1e12).check(name, value)


def _shown(value: Any) -> str:
    return repr(value)[:80]
