"""Sequence classifiers of any architecture that transformers has, read as they are: the probability of a label."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from posttrain.errors import ModelError, first_line, unknown
from posttrain.models.load import is_classifier, locate, read_network
from posttrain.models.precision import default_device

AT_A_TIME = 32  # texts of one length


@dataclass
class TextClassifier:
    """The probability of one label of a classifier, in float32.

    By softmax over the labels, or by sigmoid where the model's configuration says that a text may have several. Texts
    are cut at the most tokens that the model takes. Weights are read by `load`.
    """

    name: str
    config: Any
    place: int  # of the label
    network: Any = field(default=None, repr=False)
    tokenizer: Any = field(default=None, repr=False)

    def load(self) -> None:
        """Read the weights; raises `ModelError` if some are missing, do not fit or are not finite."""
        where = locate(self.name)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(where)
        except Exception as error:  # damaged files raise whatever the code that met them raises
            raise ModelError(f"cannot load a classifier from '{self.name}': {first_line(error)}") from error
        kind = AutoModelForSequenceClassification
        network = read_network(kind, self.name, where, "a classifier", dtype=torch.float32)
        self.network = network.to(default_device()).eval()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[float]:
        """The probability of the label in each text; those of one length are read together, so that none is padded."""
        most = min(self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", None) or 2**31)
        ids = [self.tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in texts]
        ids = [one or [self.config.eos_token_id or 0] for one in ids]
        at_a_time = 1 if self.config.pad_token_id is None else AT_A_TIME  # decoders look for it in a batch
        several = self.config.problem_type == "multi_label_classification"
        places: dict[int, list[int]] = {}
        for place, one in enumerate(ids):
            places.setdefault(len(one), []).append(place)
        found: dict[int, float] = {}
        for alike in places.values():
            for first in range(0, len(alike), at_a_time):
                some = alike[first : first + at_a_time]
                logits = self.network(torch.tensor([ids[i] for i in some], device=self.network.device)).logits
                shares = torch.sigmoid(logits) if several else torch.softmax(logits, -1)
                found |= dict(zip(some, shares[:, self.place].tolist(), strict=True))
        return [found[place] for place in range(len(texts))]


def text_classifier(name: str, label: str) -> TextClassifier:
    """The classifier in a folder or of a hub id, without its weights."""
    try:
        config: Any = AutoConfig.from_pretrained(locate(name))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"cannot read the classifier '{name}': {first_line(error)}") from error
    labels = [str(config.id2label[place]) for place in sorted(config.id2label)]
    if not is_classifier(config):
        raise ModelError(f"'{name}' is no sequence classifier; a reward `reward=\"classifier?model=...\"` needs one")
    if len(labels) < 2:
        raise ModelError(
            f"the classifier '{name}' has 1 label ({labels[0]}), whose score is no probability; one with 2 or more is "
            "needed, or name it with `reward_model`"
        )
    if label not in labels:
        raise unknown(f"label of the classifier '{name}':", label, labels)
    return TextClassifier(name, config, labels.index(label))
