"""Forms of the recipes that train on given data."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.groups import Control, HeldOut, Playing, TrainingOptions
from posttrain.options.kinds import Algorithm, Environment, Model, Rows
from posttrain.options.option import Form, Job, Range

JOB_ALGORITHMS = ("dpo", "ipo", "kto", "orpo", "simpo", "dpop", "tdpo", "step-dpo", "irpo", "sppo")
_HELP = {
    "model": "model lora_rank precision",
    "optimisation": "lr warmup_steps decay microbatch_tokens gradient_checkpointing offload_optimizer",
    "evaluation": "eval_share eval_dataset eval_every stop_after",
    "run": "seed",
}


@dataclass(frozen=True)
class SFT(Control, Playing, HeldOut, TrainingOptions):
    """Supervised fine-tuning on demonstrations."""

    HELP: ClassVar[Mapping[str, str]] = _HELP | {
        "data": "dataset environment columns limit max_tokens train_on",
        "optimisation": f"algorithm epochs steps examples_per_step {_HELP['optimisation']}",
    }
    dataset: Rows = ""
    """Demonstrations: a file, folder, glob or hub id. Or a weighted mixture such as "a.jsonl=0.7 b.parquet=0.3"."""
    model: Model = "smollm2-135m-instruct"
    """Model: hub id, folder or run. A run means its best checkpoint, or else its latest; adapters and packaged models
    work too."""
    _: KW_ONLY
    environment: Environment = ""
    """Environment with demonstrations: FILE.py:CLASS or installed name."""
    algorithm: Annotated[Literal["sft", "dft"], Job()] = "sft"
    """Loss: sft or dft. sft: maximum likelihood. dft weighs each token by its probability."""
    epochs: Annotated[float, Range(0, out="low"), Job(0.001, 1000)] = 1.0
    """Number of epochs; may be a fraction."""
    steps: Annotated[int, Range(0), Job(1, 1_000_000)] = 0
    """Number of updates, 0: set by `epochs`."""
    examples_per_step: Annotated[int, Range(1), Job(high=4096)] = 16
    """Demonstrations per batch."""
    max_tokens: Annotated[int, Range(1), Job(high=131_072)] = 1024
    """Maximum tokens per example; longer ones are left out, and counted."""
    train_on: Annotated[Literal["all", "last"], Job()] = "all"
    """Assistant turns in the loss: all or last. last: of each conversation."""
    lr: Annotated[float, Range(0), Job(high=1)] = 5e-5
    """Peak learning rate. LoRA usually needs about ten times as much."""
    columns: str = ""
    """Column mapping, such as "prompt=question completion=response"."""
    limit: Annotated[int | None, Job(1, 10_000_000)] = None
    """Maximum number of demonstrations; default: all."""
    eval_limit: Annotated[int, Range(1), Job(high=10_000)] = 200


@dataclass(frozen=True)
class PairOptions(HeldOut, TrainingOptions):
    """Options of training data, optimisation and held-out data."""

    HELP: ClassVar[Mapping[str, str]] = _HELP | {
        "data": "dataset columns limit max_tokens",
        "optimisation": f"epochs steps pairs_per_step {_HELP['optimisation']}",
    }
    dataset: Rows = ""
    """Preference pairs: a file, folder, glob, hub id or mixture. With prompt, chosen and rejected (or as HH-RLHF has
    them)."""
    model: Model = "smollm2-135m-instruct"
    """Model to train: hub id, folder or run. A run means its best checkpoint, or else its latest; packaged models work
    too."""
    _: KW_ONLY
    epochs: Annotated[float, Range(0, out="low"), Job(0.001, 1000)] = 1.0
    """Number of epochs; may be a fraction."""
    steps: Annotated[int, Range(0), Job(1, 1_000_000)] = 0
    """Number of updates, 0: set by `epochs`."""
    pairs_per_step: Annotated[int, Range(1), Job(high=4096)] = 16
    """Pairs per batch."""
    max_tokens: Annotated[int, Range(1), Job(high=131_072)] = 1024
    """Maximum tokens of prompt and response. Pairs with a longer one are left out, and counted."""
    columns: str = ""
    """Column mapping, such as "chosen=better rejected=worse"."""
    limit: Annotated[int | None, Job(1, 10_000_000)] = None
    """Maximum number of rows; default: all."""


@dataclass(frozen=True, kw_only=True)
class Preferences(PairOptions):
    """Preference optimisation on given pairs (DPO and variants) or thumbs (KTO)."""

    HELP: ClassVar[Mapping[str, str]] = {"optimisation": "algorithm"}

    algorithm: Annotated[Algorithm, Job(names=JOB_ALGORITHMS)] = "dpo"
    """Algorithm; `posttrain algorithms` lists all. `posttrain explain NAME` describes one."""


@dataclass(frozen=True, kw_only=True)
class PreferenceHeads(Control):
    """Options of `heads="preference"` alone."""

    HELP: ClassVar[Mapping[str, str]] = {"model": "ensemble", "optimisation": "margin length_debias"}

    label_smoothing: Annotated[float, Range(0, 0.5, out="high"), Job(high=0.5)] = 0.0
    """Label smoothing: assumed fraction of flipped preferences; below 0.5."""
    margin: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Coefficient of the pair's margin in the loss. The margin is 'margin' or 'strength' of its row; 1 is usual."""
    center_rewards: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Coefficient of a loss that centres scores at 0. It is (chosen + rejected)^2, and makes scores comparable across
    prompts; 0.01 is usual."""
    ensemble: Annotated[int, Range(1), Job(high=16)] = 1
    """Ensemble size: heads on a shared trunk. Each trains on its own bootstrap sample; their disagreement estimates
    epistemic uncertainty."""
    length_debias: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Weight of length debiasing (ODIN), 0: off. A second head absorbs length; 1 is usual."""


@dataclass(frozen=True, kw_only=True)
class AttributeHeads(Form):
    """Options of `heads="attributes"` alone."""

    HELP: ClassVar[Mapping[str, str]] = {"data": "ratings"}

    ratings: Rows = ""
    """Rated responses, with `heads="attributes"`: a file, folder, glob or hub id. With prompt, completion and ratings
    (or as HelpSteer2 and UltraFeedback have them)."""
    weights: str = ""
    """Attribute weights, such as "verbosity=-0.4 complexity=0". Of standardised attributes; default: 1, and 0 leaves
    one out. With pairs they initialise the gate, which keeps the signs."""
    decorrelate: str = ""
    """Attribute to decorrelate from, such as verbosity. It is regressed out of the others, and has weight 0."""
    pair_columns: str = ""
    """Column mapping of the pairs, such as "chosen=better rejected=worse". `columns` are those of the ratings."""
    gate_width: Annotated[int, Range(0)] = 64
    """Hidden units of the gate, 0: same weights for all prompts."""


@dataclass(frozen=True)
class Scoring(PreferenceHeads, AttributeHeads, PairOptions):
    """Reward models: scores learned from preference pairs (Bradley-Terry), ratings or labelled steps."""

    HELP: ClassVar[Mapping[str, str]] = {"model": "heads", "evaluation": "calibrate"}

    dataset: Rows = ""
    """Preference pairs: a file, folder, glob, hub id or mixture. With prompt, chosen and rejected (or as HH-RLHF has
    them). With `heads="attributes"` they train the gate; without them `weights` is used. With `heads="steps"`:
    reasonings with prompt, steps and labels (or as PRM800K has them)."""
    _: KW_ONLY
    heads: Literal["preference", "attributes", "steps"] = "preference"
    """Heads: preference, attributes or steps. preference: a score, trained on pairs (Bradley-Terry). attributes: one
    for each rated attribute, trained on ratings, and a prompt-conditioned gate, trained on pairs (ArmoRM). steps: a
    process reward model, trained on labelled steps. Heads are trained in full; an adapter is merged when saved."""
    lr: Annotated[float, Range(0), Job(high=1)] = 1e-5
    """Peak learning rate. LoRA usually needs about ten times as much."""
    pairs_per_step: Annotated[int, Range(1), Job(high=4096)] = 16
    """Pairs per batch; consecutive pairs of one prompt (a ranking) count as one. Of `heads="attributes"`: rated
    responses; of `heads="steps"`: reasonings."""
    calibrate: bool = True
    """Temperature scaling on held-out pairs. Score differences are then log-odds that the first response is
    preferred; with `heads="steps"`, scores are log-odds that a step is right."""

    def together(self) -> None:
        """A head that absorbs length stands beside one."""
        super().together()
        if self.length_debias and self.ensemble > 1:
            raise UserError("`length_debias` needs a single head; leave out `ensemble`")
