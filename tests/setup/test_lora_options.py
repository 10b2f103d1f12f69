"""Options of adapters, read and refused."""

import pytest

from posttrain.errors import UserError
from posttrain.models import lora
from posttrain.models.lora_config import Lora
from posttrain.setup.lora_options import lora_of


class Options:
    lora_rank, lora_alpha, lora_dropout, lora_targets = 0, None, 0.0, ""
    lora_rslora, lora_dora, lora_modules_to_save = False, False, ""

    def __init__(self, **given):
        self.__dict__.update(given)


def test_options_become_an_adapter():
    assert lora_of(Options()) is None
    given = Options(lora_rank=8, lora_alpha=4.0, lora_targets="q_proj, v_proj q_proj", lora_modules_to_save="norm")
    assert lora_of(given) == Lora(8, 4.0, targets=("q_proj", "v_proj"), modules_to_save=("norm",))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lora_rank": -1}, "--lora-rank must be 0 or more; got -1"),
        ({"lora_alpha": 16.0}, "--lora-alpha needs a new adapter: pass --lora-rank too"),
        ({"lora_dropout": 0.1}, "--lora-dropout needs a new adapter"),
        ({"lora_targets": "q_proj"}, "--lora-targets needs a new adapter"),
        ({"lora_rslora": True}, "--lora-rslora needs a new adapter"),
        ({"lora_dora": True}, "--lora-dora needs a new adapter"),
        ({"lora_modules_to_save": "norm"}, "--lora-modules-to-save needs a new adapter"),
        ({"lora_rank": 4, "lora_alpha": 0.0}, "--lora-alpha must be above 0"),
        ({"lora_rank": 4, "lora_alpha": float("nan")}, "--lora-alpha must be above 0"),
        ({"lora_rank": 4, "lora_dropout": 1.0}, "--lora-dropout is a probability"),
        ({"lora_rank": 4, "lora_dropout": -0.1}, "--lora-dropout is a probability"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(given, says):
    with pytest.raises(UserError, match=says):
        lora_of(Options(**given))


def test_without_peft_a_rank_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(lora, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'posttrain\[lora\]'"):
        lora_of(Options(lora_rank=4))
    assert lora_of(Options()) is None
