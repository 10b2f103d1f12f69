import math
from dataclasses import dataclass, replace

import pytest

from posttrain.errors import UserError
from posttrain.setup.training_options import check_heldout, check_settings


@dataclass(frozen=True)
class Some:
    lr: float = 0.0
    warmup_steps: int = 0
    decay: str = "cosine"
    weight_decay: float = 0.0
    max_grad_norm: float = 1e-9
    optim: str = "adamw"
    lora_rank: int = 0
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_targets: str = ""
    lora_rslora: bool = False
    lora_dora: bool = False
    lora_modules_to_save: str = ""
    microbatch_tokens: int = 1
    save_every: int = 1
    keep_last: int = 1
    steps: int = 0


def test_the_least_of_everything_is_allowed_and_no_clipping():
    check_settings(Some())
    check_settings(Some(max_grad_norm=math.inf))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1e-9}, "--lr must be 0 or more; got -1e-09"),
        ({"lr": math.nan}, "--lr must be 0 or more; got nan"),
        ({"lr": math.inf}, "--lr must be 0 or more; got inf"),
        ({"warmup_steps": -1}, "--warmup-steps must be 0 or more; got -1"),
        ({"weight_decay": -0.1}, "--weight-decay must be 0 or more; got -0.1"),
        ({"max_grad_norm": 0.0}, "--max-grad-norm must be above 0; got 0.0"),
        ({"max_grad_norm": math.nan}, "--max-grad-norm must be above 0; got nan"),
        ({"lora_rank": -1}, "--lora-rank must be 0 or more; got -1"),
        ({"lora_dora": True}, "--lora-dora needs a new adapter: pass --lora-rank too, such as 16, or leave it out"),
        ({"microbatch_tokens": 0}, "--microbatch-tokens must be 1 or more; got 0"),
        ({"save_every": 0}, "--save-every must be 1 or more; got 0"),
        ({"keep_last": 0}, "--keep-last must be 1 or more; got 0"),
        (
            {"optim": "adam-8bit"},
            "unknown optimiser 'adam-8bit'; did you mean 'adamw-8bit'? There are: adamw, adamw-8bit",
        ),
        ({"decay": "cosin"}, "unknown decay 'cosin'; did you mean 'cosine'? There are: constant, cosine, linear"),
    ],
)
def test_what_cannot_be_trained_with_is_refused(changes, message):
    with pytest.raises(UserError) as error:
        check_settings(replace(Some(), **changes))
    assert str(error.value) == message


def test_a_recipe_names_more_that_must_be_counted():
    with pytest.raises(UserError, match=r"^--steps must be 1 or more; got 0$"):
        check_settings(Some(), counts=("steps",))
    check_settings(Some(steps=1), counts=("steps",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_share": -0.1}, "--eval-share must be a fraction"),
        ({"eval_share": 1.0}, "--eval-share must be a fraction"),
        ({"eval_share": 0.1, "eval_dataset": "x"}, "exclude each other"),
        ({"eval_every": 1}, "--eval-every needs held-out rows"),
        ({"stop_after": 1}, "--stop-after needs evaluations"),
    ],
)
def test_what_is_held_out_is_said_once(changes, message):
    said = {"eval_share": 0.0, "eval_dataset": "", "eval_every": 0, "stop_after": 0}
    check_heldout(**said)
    check_heldout(**said | {"eval_share": 0.5, "eval_every": 1})
    check_heldout(**said | {"eval_dataset": "x", "eval_every": 1})
    with pytest.raises(UserError, match=message):
        check_heldout(**said | changes)
