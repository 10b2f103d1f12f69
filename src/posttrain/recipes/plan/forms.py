"""The options of `posttrain plan`: those of the run that is planned."""

from dataclasses import dataclass

from posttrain.training.pair_options import PairOptions, ScoreOptions


@dataclass(frozen=True)
class PlanRL:
    """What a run of `rl` will take. The options are those of `rl`."""

    dataset: str = ""
    """What to train on; its prompts are measured. Without it they are taken to have --prompt-tokens."""
    model: str = "smollm2-135m-instruct"
    """The policy: a hub id, a folder, an adapter's folder, or a packaged model."""
    algorithm: str = "grpo"
    """Which algorithm, with its default knobs: they decide what is held and sampled beside."""
    steps: int = 100
    """How many batches to sample and learn from."""
    prompts_per_step: int = 16
    """Different prompts in a batch."""
    completions_per_prompt: int = 8
    """Completions of each prompt: the group. The rollout batch is prompts x completions."""
    updates_per_step: int = 1
    """Updates on each batch."""
    max_new_tokens: int = 256
    """The longest completion."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out."""
    critic: str = "trunk"
    """For an algorithm with a critic: a row on the policy's own trunk, or a network of its own (trunk or own)."""
    pretraining_dataset: str = ""
    """For an algorithm that learns text beside (ppo-ptx); without it texts are taken to have --max-prompt-tokens."""
    pretraining_per_step: int = 16
    """Texts in each update."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""
    lora_alpha: float | None = None
    """Scale of the adapter; changes nothing of what a run takes."""
    lora_dropout: float = 0.0
    """Dropout probability on the adapter's input."""
    lora_targets: str = ""
    """Linear layers that get the adapter, such as "q_proj v_proj"; unless given, all but the head."""
    lora_rslora: bool = False
    """Scale by the root of the rank; changes nothing of what a run takes."""
    lora_dora: bool = False
    """DoRA: learn magnitude and direction of the weights separately."""
    lora_modules_to_save: str = ""
    """Modules to train fully and save with the adapter (modules_to_save of peft), such as "embed_tokens lm_head"."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    optim: str = "adamw"
    """The optimiser: adamw, or adamw-8bit: both moments of Adam in block-wise quantised 8 bits, 2 bytes per parameter
    instead of 8, and a slower update; input embedding, norms and matrices below 4,096 elements stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer in the backward pass: less memory, about a third more
    time. Gradients are the same to the last bit."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    cache_gb: float = 1.5
    """Memory for keys and values while sampling."""
    columns: str = ""
    """Which columns to read, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Use only so many tasks; of a gym: source, make so many."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each question."""
    chat_template: str = ""
    """A Jinja file in place of the tokenizer's own chat template."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    seed: int = 0
    """Decides which tasks a gym: source makes."""
    prompt_tokens: int = 128
    """Tokens of a prompt where there is no --dataset to measure."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


@dataclass(frozen=True)
class PlanSFT:
    """What a run of `sft` will take. The options are those of `sft`."""

    dataset: str = ""
    """Demonstrations; their lengths are measured. Without it every example is taken to have --max-tokens."""
    model: str = "smollm2-135m-instruct"
    """What to train: a hub id, a folder, an adapter's folder, or a packaged model."""
    epochs: float = 1.0
    """Passes over the demonstrations; less than one for a part of them."""
    steps: int = 0
    """Updates; 0: as many as --epochs takes."""
    examples_per_step: int = 16
    """Demonstrations in a batch."""
    max_tokens: int = 1024
    """The longest example; longer ones are left out."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""
    lora_alpha: float | None = None
    """Scale of the adapter; changes nothing of what a run takes."""
    lora_dropout: float = 0.0
    """Dropout probability on the adapter's input."""
    lora_targets: str = ""
    """Linear layers that get the adapter, such as "q_proj v_proj"; unless given, all but the head."""
    lora_rslora: bool = False
    """Scale by the root of the rank; changes nothing of what a run takes."""
    lora_dora: bool = False
    """DoRA: learn magnitude and direction of the weights separately."""
    lora_modules_to_save: str = ""
    """Modules to train fully and save with the adapter (modules_to_save of peft), such as "embed_tokens lm_head"."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    optim: str = "adamw"
    """The optimiser: adamw, or adamw-8bit: both moments of Adam in block-wise quantised 8 bits, 2 bytes per parameter
    instead of 8, and a slower update; input embedding, norms and matrices below 4,096 elements stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer in the backward pass: less memory, about a third more
    time. Gradients are the same to the last bit."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    columns: str = ""
    """Which columns to read, such as "prompt=question completion=response"."""
    limit: int | None = None
    """Use only so many demonstrations, from the first."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each of the user's messages."""
    chat_template: str = ""
    """A Jinja file in place of the tokenizer's own chat template."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


@dataclass(frozen=True)
class PlanPreference(PairOptions):
    """What a run of `preference` will take. The options are those of `preference`."""

    algorithm: str = "dpo"
    """Which algorithm, with its default knobs: they decide whether a reference is kept."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


@dataclass(frozen=True)
class PlanRewardModel(ScoreOptions):
    """What a run of `posttrain reward-model` will take, one score from pairs; --length-debias takes a third more."""

    label_smoothing: float = 0.0
    """How often a choice is taken to be the wrong way round."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


Config = PlanRL | PlanSFT | PlanPreference | PlanRewardModel
