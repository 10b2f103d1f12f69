"""Errors that a person can act on. Each says in one line what was given, what was expected, and what to type.

Options are named as parameters in backticks, `lora_rank` or `lora_rank=16`, which a caller from Python can read. Where
a text reaches somebody at a command line, `as_typed` turns them into flags.
"""

import inspect
import re
import shlex
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

USER_MODULE = "posttrain_user_"
"""How the names of modules begin that are loaded from a user's file (`user_code.py`)."""


class PosttrainError(Exception):
    """Anything that posttrain raises on purpose. The command line prints it in one line and exits with `exit_code`."""

    exit_code = 1


class UserError(PosttrainError, ValueError):
    """The user's mistake: a wrong option, file, column, or combination of them."""

    exit_code = 2


class DataError(UserError):
    """A file or a row that cannot be read as what it should be; names file, line and field."""


class TemplateError(UserError):
    """A chat template that cannot be rendered, or whose rendering leaves nothing to learn."""


class ModelError(UserError):
    """A model folder, hub id or checkpoint that cannot be loaded."""


class CheckpointError(PosttrainError):
    """A checkpoint that cannot be written, or none that can be read."""


class EngineError(PosttrainError):
    """A sampler that cannot be reached, or that answered from other weights than the policy's."""


class RewardError(PosttrainError):
    """A reward that raised, hung, or returned something that is not one finite number per episode."""


class NoReplyError(RewardError):
    """A chat model that cannot be asked: it does not reply, or its budget is used up. No text is the reason."""


class EpisodeError(PosttrainError):
    """More episodes failed than may."""


class CallbackError(PosttrainError):
    """A user's callback raised."""


class TrainingError(PosttrainError):
    """Training cannot go on: a loss or gradient that is not finite."""


class ProcessLost(TrainingError):
    """A process without which training cannot go on is gone, or does not answer."""

    run: Path | None = None  # that was under way, if its directory was open
    step: int = 0  # its last checkpoint, 0 if there is none


# not within quotes or words: that is data which an error repeats
_PARAMETER = re.compile(r"""(?<![`'"\w])`([a-z][a-z0-9]*(?:_[a-z0-9]+)*_?)(?:=([^`]+))?`(?![`'"\w])""")
_QUOTED = re.compile(r"""(["'])([\w@%+=:,./-]+)\1""")  # quotes that a shell does not need
_DECLARED = re.compile(r'^    ([a-z]\w*): (?!ClassVar).*\n    """', re.MULTILINE)


def as_typed(text: str) -> str:
    """A text with its parameters in backticks as flags of the command line.

    Names that are no option of any command stay as they are, since an error may repeat a user's data.

    Example:
        >>> as_typed("`lora_rank=16` and less than `microbatch_tokens`")
        '--lora-rank 16 and less than --microbatch-tokens'
        >>> as_typed('`optim="adamw-8bit"`, `columns="prompt=a answer=b"`, `lora_dora=True`, `lora_dora=False`')
        '--optim adamw-8bit, --columns "prompt=a answer=b", --lora-dora, --no-lora-dora'
    """
    return _PARAMETER.sub(_flag, text)


def _flag(found: re.Match[str]) -> str:
    if found[1] not in _options():
        return found[0]
    name, value = found[1].rstrip("_").replace("_", "-"), found[2]
    if value in (None, "True", "False"):
        return "--" + ("no-" if value == "False" else "") + name
    quoted = _QUOTED.fullmatch(value)
    return " ".join(["--" + name, quoted[2] if quoted else value])


@cache
def _options() -> set[str]:
    """The names of the options of all commands: those with a text under them in the sources of forms and algorithms."""
    here = Path(__file__).parent
    names = ("cli.py", "lookup.py", "options/*.py", "algorithms/*.py")
    texts = [file.read_text(encoding="utf-8") for name in names for file in here.glob(name)]
    return {name for text in texts for name in _DECLARED.findall(text)}


def words_of(option: str, text: str) -> list[str]:
    """The words of an option, as a shell reads them; raises `UserError` for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"cannot read `{option}={text!r}`: {error}; put a path with spaces in quotes") from error


def foreign(text: str) -> str:
    """What another program said, without backticks: in our texts they name parameters."""
    return text.replace("`", "'")


def moved_to(asked: str, location: str) -> str:
    """Where a redirect of the address `asked` leads, without what may be secret; "" where it does not say.

    Example:
        >>> moved_to("http://a.example/v1", "https://me:pw@b.example/v1?key=k"), moved_to("http://a.example/v1", "/v2")
        ('https://b.example/v1', 'http://a.example/v2')
    """
    try:
        parts = urlsplit(urljoin(asked, location) if location else "")
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return ""
    there = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return foreign(re.sub(r"[^!-~]", "", there))[:200]


def first_line(error: BaseException) -> str:
    r"""What an error of another library says, without its explanations; a line that ends with a colon has the next.

    Example:
        >>> [first_line(error) for error in (OSError("no `a`.\nSee the docs"), KeyError(), ValueError("a:\n b"))]
        ["no 'a'", 'KeyError', 'a: b']
    """
    lines = re.sub(r":\s*\n\s*", ": ", _text(error).strip()).splitlines() or [type(error).__name__]
    return foreign(lines[0].rstrip("."))


def described(error: BaseException) -> str:
    """The type of an error and what it says, if it says anything, such as `KeyError: 'a'`."""
    says = _text(error) if isinstance(error, PosttrainError) else foreign(_text(error))
    return f"{type(error).__name__}: {says}" if says else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's class may be wrong, too
        return "its text cannot be read"


def place_of(error: BaseException) -> str:
    """` (file.py:12)`: the line that raised an error; "" where it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def place_in_user_code(error: BaseException) -> str:
    """` (file.py:12)`: the line that raised an error, of user code if that led to it; "" if it is posttrain's alone."""
    frames = [
        (frame.f_globals.get("__name__", ""), f" ({frame.f_code.co_filename}:{line})")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    loaded = [place for module, place in frames if module.startswith(USER_MODULE)]
    ours = [number for number, (module, _) in enumerate(frames) if module.partition(".")[0] == "posttrain"]
    called = [place for _, place in frames[ours[-1] + 1 if ours else 0 :]]  # by us, such as an installed environment
    return loaded[-1] if loaded else called[0] if called else ""


_OF_TRL = """
    beta=kl_coefficient epsilon=clip_low epsilon_high=clip_high eval_steps=eval_every learning_rate=lr
    lr_scheduler_type=decay max_completion_length=max_new_tokens max_length=max_tokens
    max_prompt_length=max_prompt_tokens max_steps=steps num_generations=completions_per_prompt
    num_iterations=updates_per_step num_train_epochs=epochs reward_funcs=reward save_steps=save_every
    save_total_limit=keep_last sync_ref_model=ref_sync_every train_dataset=dataset
    vllm_importance_sampling_cap=tis_cap
"""
"""Names of TRL's configurations, and what ours are called."""


def refuse_unknown(kind: type[Any], given: Iterable[str]) -> None:
    """Raise `UserError` for an option or hyperparameter that a form or algorithm lacks; names the one that is meant."""
    taken = inspect.signature(kind.__init__).parameters.values()  # of a user's subclass its own
    known = [one.name for one in taken if one.name != "self"]
    for name in given:
        if name not in known and not any(one.kind == one.VAR_KEYWORD for one in taken):
            pairs = (word.partition("=") for word in _OF_TRL.split())
            if (ours := next((here for there, _, here in pairs if there == name), "")) in known:
                raise UserError(f"unknown option of {kind.__name__}: '{name}'; it is called '{ours}' here")
            see = "its help() lists all" if len(known) > 20 else ""
            if "algorithm" in known:
                see += (
                    "; hyperparameters are the algorithm's: give an object, such as algorithm=GRPO(kl_coefficient=0) "
                    "or DPO(beta=0.1)"
                )
            raise unknown(f"option of {kind.__name__}:", name, known, see=see)


def unknown(kind: str, given: str, known: Iterable[str], *, see: str = "") -> UserError:
    """The error for a name that does not exist: the nearest one that does, and all of them or, if given, `see`.

    Example:
        >>> print(unknown("algorithm", "grop", ["grpo", "ppo"]))
        unknown algorithm 'grop'; did you mean 'grpo'? There are: grpo, ppo
    """
    names = sorted(known)
    small = {name.lower(): name for name in names}
    near = get_close_matches(given.lower(), small, n=1, cutoff=0.5)
    hint = f"did you mean '{small[near[0]]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}'; {hint}{see or 'There are: ' + ', '.join(names)}")
