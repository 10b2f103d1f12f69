"""A scalar head: one number for a whole sequence, read from its last token. What a reward model is.

Shape letters: E sequences of a packed row, D hidden width.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from posttrain import fast_paths
from posttrain.errors import ModelError
from posttrain.models import lora
from posttrain.models.language_model import LanguageModel, Packed, ready
from posttrain.models.load import is_classifier, locate, refuse_missing, without_report
from posttrain.models.wide import wide_dtype


@dataclass
class RewardModel:
    """A decoder whose head is one row: `score(x, y) = w . h(last token of y)`."""

    body: LanguageModel  # whose network is transformers' ...ForSequenceClassification with one label

    @property
    def head(self) -> nn.Parameter:
        """The row w, [1, D]."""
        network: Any = self.body.network
        return network.score.weight

    def scores(self, row: Packed) -> Tensor:
        """One number for each sequence of a packed row, [E], in the order of `row.examples`, float32.

        The last product is wide even where the model computes in bfloat16, which could not tell 8.00 from 8.03.
        """
        last = self.body.states(row)[self.body.ids(row.ends)]
        wide = wide_dtype(last.dtype)
        return (last.to(wide) @ self.head.to(wide).T)[:, 0]

    def save(self, folder: Path, *, padding: int) -> None:
        """Write a Hugging Face folder, which transformers reads as a sequence classifier with one label.

        Its classifier reads the score at the last token that is not `padding`, so no sequence may end with that: many
        tokenizers pad with the stop token, and every score would silently be that of the token before it.
        """
        config: Any = self.body.network.config
        config.pad_token_id = padding
        self.body.save(folder)


def load_reward_model(name: str, *, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> RewardModel:
    """Load a reward model, or put a fresh scalar head on a language model: w ~ N(0, 1 / (D + 1)).

    The initialisation is that of Stiennon et al. 2020 (https://arxiv.org/abs/2009.01325), appendix B.

    Raises:
        ModelError: there is no such model, it is an adapter, or it has more than one score.
    """
    where = locate(name)
    if lora.is_adapter(where):
        raise ModelError(f"'{name}' is an adapter; merge it into its base first, and start from the merged model")
    try:
        config: Any = AutoConfig.from_pretrained(where)
        known = is_classifier(config)
        if known and config.num_labels != 1:
            raise ModelError(f"'{name}' gives {config.num_labels} scores to a sequence; a reward model gives one")
        config.num_labels = 1
        with without_report():
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                where, config=config, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"cannot load a reward model from '{name}': {str(error).splitlines()[0]}") from error
    network, found = loaded
    refuse_missing(name, set(found["missing_keys"]) - (set() if known else {"score.weight"}))
    if not known:
        noise = torch.randn(network.score.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            network.score.weight.copy_(noise / math.sqrt(noise.shape[1] + 1))
    # a row per token of the batch, which MasterAdamW can take
    network.get_input_embeddings().sparse = fast_paths.on("sparse embedding")
    text = config.get_text_config()
    return RewardModel(LanguageModel(ready(network.to(device)), text.max_position_embeddings, name))
