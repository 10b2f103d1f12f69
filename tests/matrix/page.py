"""docs/models.md from the matrix: which models can be trained by what, and how far their numbers are off.

python -m tests.matrix.page     measures, and writes it anew
"""

import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from posttrain.errors import ModelError
from posttrain.models.support import refuse_no_classifier, refuse_unsupported
from tests.data.families import of_family
from tests.matrix.cells import RECIPES
from tests.matrix.families import FAMILIES, config_of, save_family
from tests.matrix.numbers import BOUND, Gaps, policy_gaps

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

TEXT = f"""# Models

Written by `python -m tests.matrix.page` from the support matrix, `tests/matrix/`. Tiny random models of each family are
trained by every recipe, with all weights and with an adapter. `make matrix` runs the whole matrix; `make test` compares
the numbers of every family and trains a third of the cells.

**yes** means, for all weights and for an adapter:

- logprobs (scores of a reward model) and their gradients in float32, computed on packed rows with shared prompts, equal
  those of plain transformers, one sequence at a time, within {BOUND:.0e}: nats for logprobs, and for each parameter
  ||g - g'|| / ||g'||;
- logprobs of sampled tokens equal the trainer's within the same bound;
- three updates, and a resume after the second that ends in the same weights, bit for bit;
- what is saved is read by plain transformers (an adapter by peft) and gives the same logprobs or scores.

**no** is refused in one line, exit code 2, before weights are read.
"""

MEASURED = """

The last three columns are what was measured when this page was written, the larger of all weights and an adapter:
logprobs and gradients against transformers, and sampled logprobs against the trainer.
"""

NOTES = """
## What else to know

- An adapter is added to every linear layer but the head. The experts of Qwen2-MoE, Qwen3-MoE, Mixtral and gpt-oss are
  not linear layers in transformers: they stay as they are, and the adapter trains attention (in Qwen2-MoE the shared
  expert, too).
- The routers' load-balancing losses are not added to any loss.
- Scores that are capped (Gemma 2) or have sinks (gpt-oss) are computed without torch's fused kernels: a layer holds the
  scores of a sequence, query heads x tokens x tokens, while it is computed.
- Models of text and images (Gemma 3 from 4B on, Llama 4) are refused; so are state-space and hybrid models (Mamba,
  Jamba, Qwen3-Next), whose layers carry a state that packed sequences would share.
- LongRoPE (Phi-3 128k, Phi-4-mini): a sequence may have at most `original_max_position_embeddings` tokens (4096 in
  both). Beyond that, transformers takes other frequencies for the whole row, packed neighbours included.
- A model of another type is compared with transformers when it is loaded, on two sequences with a shared prompt, and is
  refused if its states differ, or if its sliding window is shorter than its context. Nothing else about it is tested.
- Weights are read from safetensors alone: a pickle (`pytorch_model.bin`) is refused, with what converts it. So is a
  folder whose weights do not fit its config.json, before anything is built, and a tokenizer with tokens that have no
  row in the embedding. Rows without a token are padding.
- The matrix is in float32 on a CPU. Precision on your machine and your model: `posttrain verify`.
"""


@cache
def refusal(family: str, recipe: str) -> str:
    """Why a recipe refuses a family, from its configuration; empty where it works."""
    config = config_of(family, of_family("smollm2"))
    try:
        refuse_unsupported(config, family)
        if recipe == "reward-model":
            refuse_no_classifier(config, family)
    except ModelError as error:
        return str(error).removeprefix(f"'{family}' is ").rsplit("; ", 1)[0]
    return ""


def page(measured: Mapping[str, Gaps]) -> str:
    """The whole page."""
    lines = [
        f"| family | type | {' | '.join(RECIPES)} | logprobs | gradients | sampled |",
        "|---" * (len(RECIPES) + 5) + "|",
    ]
    reasons: list[str] = []
    for family, (kind, _) in FAMILIES.items():
        cells = ["no" if refusal(family, recipe) else "yes" for recipe in RECIPES]
        numbers = [f"{gap:.0e}" for gap in measured[family]] if family in measured else ["", "", ""]
        lines.append(f"| {family} | {kind} | {' | '.join((*cells, *numbers))} |")
        reasons += [f"- {family}: {refusal(family, r)}." for r in ("sft", "reward-model") if refusal(family, r)][:1]
    refused = ["", "What is refused, and why:", "", *reasons]
    return "\n".join([TEXT, *lines]) + MEASURED + "\n".join(refused) + "\n" + NOTES


def measured_in(said: str) -> dict[str, Gaps]:
    """The numbers that a page has."""
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in said.splitlines() if line.startswith("| ")][1:]
    return {row[0]: Gaps(*map(float, row[-3:])) for row in rows if row[-1] and row[-1] not in ("yes", "no")}


def measure() -> dict[str, Gaps]:
    """The larger gap of all weights and an adapter, by family."""
    found: dict[str, Gaps] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for family in FAMILIES:
            if not refusal(family, "sft"):
                folder = save_family(family, Path(scratch) / family.replace(" ", "-"))
                both = [policy_gaps(folder, adapter=adapter) for adapter in (False, True)]
                found[family] = Gaps(*(max(gaps) for gaps in zip(*both, strict=True)))
    return found


if __name__ == "__main__":
    PAGE.write_text(page(measure()), encoding="utf-8")
