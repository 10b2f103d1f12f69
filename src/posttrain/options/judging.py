"""Forms of the commands that make feedback by models, judge and revise, and what all that score given texts have."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.groups import Ensemble, Judges
from posttrain.options.kinds import Judge, Rows
from posttrain.options.option import Form, Range


@dataclass(frozen=True, kw_only=True)
class GivenRows(Form):
    """Which rows are read, and how."""

    columns: str = ""
    """Column mapping, such as "prompt=question completion=response"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "train"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """float32, bfloat16 or auto, for local models. auto: the faster one."""
    seed: int = 0
    """Random seed of replies, and of sampled principles."""


@dataclass(frozen=True, kw_only=True)
class Scores(GivenRows, Judges, Ensemble):
    """What scores texts that are there already."""

    reward_model: str = ""
    """Reward models: runs, folders or hub ids, space-separated."""
    microbatch_tokens: Annotated[int, Range(1)] = 4096
    """Maximum tokens per forward pass of a reward model."""


@dataclass(frozen=True)
class JudgeAnswers(Judges, GivenRows):
    """Label pairs, or score answers, by judges."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "principles": ("constitution", "a `constitution` of which they are"),
    }
    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns split limit output disputed",
        "rewards": "judge judge_prompt consensus accuracy constitution principles fit_weights judge_budget",
        "run": "precision seed",
    }
    dataset: Rows = ""
    """Answers: a file, folder, glob or hub id. With the columns prompt and completions (a list), or chosen and
    rejected, or completion; any layout of preferences."""
    output: str = ""
    """Output file (.jsonl) of labelled rows. Two answers: a pair, for preference and reward-model; more: responses and
    scores; one: a score."""
    _: KW_ONLY
    disputed: str = ""
    """File (.jsonl) of rows on which judges disagree. They are left out of `output`; annotate import takes them.
    Verdicts that change when positions are swapped are disputed too."""
    consensus: Literal["mean", "majority", "minimum"] = "mean"
    """Consensus of several judges: mean, majority or minimum. Of their scores, or of which answer is better."""
    accuracy: str = ""
    """Accuracy of each judge, such as "a=0.8 b=0.7". It is weighed by its log odds, in a mean or majority."""
    constitution: str = ""
    """Constitution whose principles judges go by: default, or a file. TOML or JSON; each row is judged by a sampled
    principle, with the judge prompt "principle" unless another is given."""
    principles: Annotated[int, Range(1)] = 1
    """Principles sampled for each row. From 2 on, principles that contradict each other are reported."""
    fit_weights: str = ""
    """File (.txt) of a judge prompt with fitted weights of its rubric. By the labelled pairs of the dataset; a logistic
    regression on which criteria each answer meets."""

    def together(self) -> None:
        """A minimum has no weights."""
        super().together()
        if self.accuracy and self.consensus == "minimum":
            raise UserError("`accuracy` weighs judges, and a minimum has no weights; leave it out")


@dataclass(frozen=True)
class Revise(Judges, GivenRows):
    """Critique and revise answers by a constitution."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns split limit output pairs system",
        "model": "judge precision",
        "rewards": "constitution rounds examples",
        "sampling": "judge_temperature judge_max_new_tokens judge_budget",
        "run": "seed",
    }
    dataset: Rows = ""
    """Prompts: a file, folder, glob or hub id. A column completion has first answers, which else are sampled."""
    output: str = ""
    """Output file (.jsonl) of demonstrations. Prompts with the last revision, for sft."""
    _: KW_ONLY
    judge: Judge = ""
    """Model that answers and revises: NAME=MODEL or NAME=URL#MODEL. It criticises, too. One alone; an API's key is in
    NAME_API_KEY."""
    judge_temperature: Annotated[float, Range(0, 2)] = 1.0
    """Sampling temperature."""
    judge_max_new_tokens: Annotated[int, Range(1)] = 512
    """Maximum tokens of an answer, critique or revision. Where one is truncated the rounds before it stand; without one
    the prompt is left out."""
    pairs: str = ""
    """File (.jsonl) of pairs: the last revision over the first answer."""
    constitution: str = "default"
    """Constitution: default, or a file. TOML or JSON, with a critique and a revision request for each principle."""
    rounds: Annotated[int, Range(1)] = 1
    """Critiques and revisions of each answer; each by a sampled principle."""
    examples: Annotated[int, Range(0)] = 2
    """Examples of the constitution in the prompt (few-shot). 0: none; fewer where it has fewer."""
    system: str | None = None
    """System message; replaces the data's own."""

    def together(self) -> None:
        """A prompt of verdicts is not asked."""
        super().together()
        if self.judge_prompt:
            raise UserError("`judge_prompt` is for verdicts, and revise asks for none; leave it out")
