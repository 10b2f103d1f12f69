"""Options: what a form refuses, whichever door a value came through, and what a stranger's job may set."""

import math
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest

from posttrain.algorithms import ALGORITHMS, COMMANDS
from posttrain.commands import COMMANDS as ALL
from posttrain.errors import UserError
from posttrain.options.cluster import AsyncOptions, TrainerOptions
from posttrain.options.evaluation import Evaluate
from posttrain.options.groups import HeldOut, TrainingOptions
from posttrain.options.online import RL, OnlinePreference, SampledOptions
from posttrain.options.option import Form, Job, Range, options_of
from posttrain.options.training import SFT, Preferences
from posttrain.serving.jobs.specification import FORMS, allowed, check_options


@dataclass(frozen=True)
class Some(Form):
    """Some options."""

    rate: Annotated[float, Range(0), Job(high=1)] = 0.5
    count: Annotated[int, Range(1), Job(high=9)] = 1
    share: Annotated[float | None, Range(0, 1, out="high")] = None
    mode: Annotated[Literal["fast", "slow"], Job(names=("fast",))] = "fast"
    on: Annotated[bool, Job()] = False
    layers: Annotated[str, Job()] = ""
    said: Annotated[str, Job(text=True)] = ""
    file: str = ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": -1e-9}, "`rate` must be 0 or more; got -1e-09"),
        ({"rate": math.nan}, "`rate` must be 0 or more; got nan"),
        ({"rate": math.inf}, "`rate` must be 0 or more; got inf"),
        ({"rate": "1"}, "`rate` must be a number; got '1'"),
        ({"rate": True}, "`rate` must be a number; got True"),
        ({"rate": None}, "`rate` must be a number; got None"),
        ({"count": 0}, "`count` must be 1 or more; got 0"),
        ({"count": 1.0}, "`count` must be a whole number; got 1.0"),
        ({"share": 1.0}, "`share` must be 0 to below 1; got 1.0"),
        ({"share": -0.1}, "`share` must be 0 to below 1; got -0.1"),
        ({"mode": "fst"}, "unknown mode 'fst'; did you mean 'fast'? There are: fast, slow"),
        ({"on": 1}, "`on` must be true or false; got 1"),
    ],
)
def test_a_value_of_another_type_or_range_is_one_line(values, message):
    with pytest.raises(UserError) as error:
        Some(**values)
    assert str(error.value) == message


def test_the_ends_of_a_range():
    Some(rate=0, count=1, share=0.0)
    assert 0.0 not in Range(0, out="low") and 1e-9 in Range(0, out="low")
    assert math.inf not in Range(0) and math.inf in Range(0, infinite=True) and math.nan not in Range(0, infinite=True)
    assert [str(one) for one in (Range(), Range(1), Range(0, out="low"), Range(0, 1), Range(0, 1, out="low"))] == [
        "a finite number",
        "1 or more",
        "above 0",
        "0 to 1",
        "above 0 to 1",
    ]


@pytest.mark.parametrize(
    ("form", "values", "message"),
    [
        (TrainingOptions, {"max_grad_norm": 0.0}, "`max_grad_norm` must be above 0; got 0.0"),
        (TrainingOptions, {"optim": "adam-8bit"}, "unknown optim 'adam-8bit'; did you mean 'adamw-8bit'?"),
        (TrainingOptions, {"lora_rank": -1}, "`lora_rank` must be 0 or more; got -1"),
        (TrainingOptions, {"lora_alpha": 16.0}, "`lora_alpha` needs a new adapter: pass `lora_rank` too, such as 16"),
        (TrainingOptions, {"lora_dropout": 0.1}, "`lora_dropout` needs a new adapter"),
        (TrainingOptions, {"lora_targets": "q_proj"}, "`lora_targets` needs a new adapter"),
        (TrainingOptions, {"lora_dora": True}, "`lora_dora` needs a new adapter"),
        (TrainingOptions, {"lora_rank": 4, "lora_alpha": 0.0}, "`lora_alpha` must be above 0"),
        (TrainingOptions, {"lora_rank": 4, "lora_dropout": 1.0}, "`lora_dropout` must be 0 to below 1"),
        (HeldOut, {"eval_share": 1.0}, "`eval_share` must be 0 to below 1; got 1.0"),
        (HeldOut, {"eval_share": 0.1, "eval_dataset": "x"}, "`eval_dataset` and `eval_share` exclude each other"),
        (HeldOut, {"eval_every": 1}, "`eval_every` needs held-out rows: pass `eval_share` or `eval_dataset`"),
        (HeldOut, {"eval_share": 0.1, "stop_after": 1}, "`stop_after` needs evaluations: pass `eval_every` too"),
        (SFT, {"train_on": "lst"}, "unknown train_on 'lst'; did you mean 'last'?"),
        (SFT, {"environment_args": "a=1"}, "`environment_args` needs `environment`; pass it too"),
        (SampledOptions, {"seats": "a=b"}, "`seats` needs an `environment` with several seats"),
        (SampledOptions, {"judge_prompt": "quality"}, "`judge_prompt` needs a judge: pass `judge` NAME=MODEL"),
        (SampledOptions, {"judge_budget": 3}, "`judge_budget` needs a judge"),
        (SampledOptions, {"judge": "a=b", "judge_budget": -1}, "`judge_budget` must be 0 or more; got -1"),
        (SampledOptions, {"judge": "a=b", "judge_temperature": 2.1}, "`judge_temperature` must be 0 to 2; got 2.1"),
        (SampledOptions, {"ensemble_aggregation": "worst"}, "`ensemble_aggregation` needs a `reward_model`"),
        (SampledOptions, {"uncertainty_penalty": 1.0}, "`uncertainty_penalty` needs `ensemble_aggregation` uncertain"),
        (SampledOptions, {"temperature": 0.0}, "`temperature` must be above 0; got 0.0"),
        (RL, {"gold": "numbers"}, "`gold` needs held-out evaluations"),
        (RL, {"stop_after": 1}, "`stop_after` needs evaluations: pass `eval_every` too"),
        (RL, {"kl_budget": 1.0}, "`kl_budget` needs evaluations: pass `eval_every` too"),
        (RL, {"critic": "other"}, "unknown critic 'other'"),
        (OnlinePreference, {"completions_per_prompt": 1}, "a pair needs two completions of a prompt"),
        (Evaluate, {"samples": 0}, "`samples` must be 1 or more; got 0"),
        (TrainerOptions, {"fsdp": True}, "`fsdp` needs trainer processes: pass `trainers=1` or more"),
        (TrainerOptions, {"trainers": 2, "trainer_gpus": 0.5}, "`trainer_gpus=0.5` needs `trainers=1`"),
        (TrainerOptions, {"trainers": 2, "fsdp_offload": True}, "`fsdp_offload` needs `fsdp`"),
        (TrainerOptions, {"trainers": 4, "fsdp": True, "fsdp_replicas": 3}, "`fsdp_replicas=3` must divide"),
        (TrainerOptions, {"trainers": 1, "address": "here"}, "`address` is local, auto, HOST:PORT or ray://HOST:PORT"),
        (AsyncOptions, {"trainers": 1, "in_flight_updates": True}, "`in_flight_updates` needs `max_staleness` above 0"),
        (
            AsyncOptions,
            {"trainers": 1, "max_staleness": 1, "evict_stale": True},
            "`evict_stale` needs `in_flight_updates` (with `max_staleness` above 0): otherwise",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_form_is_made(form, values, message):
    with pytest.raises(UserError) as error:
        form(**values)
    assert message in str(error.value)


def test_what_is_held_out_may_be_needed_in_two_ways():
    HeldOut(eval_share=0.5, eval_every=1, stop_after=1)
    HeldOut(eval_dataset="x", eval_every=1)
    assert TrainingOptions(max_grad_norm=math.inf).max_grad_norm == math.inf  # no clipping


@pytest.mark.parametrize("name", [name for name, command in ALL.items() if isinstance(command.form, type)])
def test_the_defaults_of_every_form_can_be(name):
    form = ALL[name].form
    form()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rate", 1.5, "'rate' must be a number from 0 to 1; got 1.5"),
        ("rate", -0.5, "'rate' must be a number from 0 to 1; got -0.5"),
        ("rate", math.nan, "'rate' must be a number from 0 to 1; got nan"),
        ("rate", True, "'rate' must be a number"),
        ("count", 10, "'count' must be a whole number from 1 to 9; got 10"),
        ("count", 0, "'count' must be a whole number from 1 to 9; got 0"),
        ("count", 1.0, "'count' must be a whole number"),
        ("mode", "slow", "'mode' must be one of fast; got 'slow'"),
        ("on", 1, "'on' must be true or false; got 1"),
        ("layers", "a/b", "'layers' has 1 to 500 letters, digits, _ . and spaces; got 'a/b'"),
        ("layers", "a\n", "'layers' has 1 to 500 letters"),
        ("layers", "", "'layers' has 1 to 500 letters"),
        ("said", "a" * 20_001, "'said' must be text of at most 20000 characters"),
        ("said", "a\x1b", "'said' must be text of at most 20000 characters, none of them control characters"),
        ("said", 3, "'said' must be text"),
    ],
)
def test_a_job_has_narrower_limits(name, value, message):
    option = options_of(Some)[name]
    with pytest.raises(UserError) as error:
        option.job.refuse(option, value)
    assert message in str(error.value)


def test_a_job_sets_what_is_within_them():
    for name, value in {
        "rate": 1,
        "count": 9,
        "mode": "fast",
        "on": True,
        "layers": "q_proj v.0",
        "said": "a\nb",
    }.items():
        option = options_of(Some)[name]
        option.job.refuse(option, value)
    assert options_of(Some)["file"].job is None


@pytest.mark.parametrize("command", FORMS)
def test_nothing_that_a_job_may_set_names_a_file_a_host_or_another_model(command):
    from posttrain.runs.inputs import NAMING

    known = allowed(command)
    assert {*known} & {*NAMING} <= {"algorithm"}  # which may be FILE.py:Class on a command line
    assert not [name for name, option in known.items() if option.kind and not option.job.names]
    texts = {name for name, option in known.items() if option.alternatives == [str] and not option.job.names}
    assert texts <= {"system", "prompt_template", "lora_targets", "lora_modules_to_save"}
    for name in known["algorithm"].job.names if "algorithm" in known else ():
        assert COMMANDS[ALGORITHMS[name]().family] == command
    with pytest.raises(UserError, match=f"unknown option of {command} jobs: 'dataset'"):
        check_options(command, {"dataset": "x"})


def test_every_number_that_a_job_may_set_has_both_limits():
    for form in (RL, SFT, Preferences):
        for option in options_of(form).values():
            if option.job and option.alternatives[0] in (int, float):
                low = max(option.job.low, option.range.low if option.range else -math.inf)
                assert math.isfinite(low) and math.isfinite(option.job.high), option.name
        assert {field.name for field in fields(form)} == {*options_of(form)}
