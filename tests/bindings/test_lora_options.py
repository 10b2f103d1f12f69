"""Options of adapters, read and refused."""

import pytest

from posttrain.bindings.backend import lora_of
from posttrain.errors import UserError
from posttrain.models import lora
from posttrain.models.lora import Lora
from posttrain.options.groups import Adapter


def test_options_become_an_adapter():
    assert lora_of(Adapter()) is None
    given = Adapter(lora_rank=8, lora_alpha=4.0, lora_targets="q_proj, v_proj q_proj", lora_modules_to_save="norm")
    assert lora_of(given) == Lora(8, 4.0, targets=("q_proj", "v_proj"), modules_to_save=("norm",))


def test_without_peft_a_rank_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(lora, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'posttrain\[lora\]'"):
        lora_of(Adapter(lora_rank=4))
    assert lora_of(Adapter()) is None
