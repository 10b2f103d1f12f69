"""Errors: parameters in backticks as flags, and what other programs said."""

import pytest

from posttrain.errors import UserError, as_typed, described, first_line, foreign
from posttrain.parsing import flag


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("nothing to type", "nothing to type"),
        ("", ""),
        ("leave out `lora_rank`", "leave out --lora-rank"),
        ("`lr`", "--lr"),
        ("`lora_rank=16`, or `microbatch_tokens` lower", "--lora-rank 16, or --microbatch-tokens lower"),
        ("type `cache_gb=1.5` `steps=-1`", "type --cache-gb 1.5 --steps -1"),
        ("`resume=runs/rl 1` goes on", "--resume runs/rl 1 goes on"),
        ('`columns="prompt=COLUMN completion=COLUMN"`', '--columns "prompt=COLUMN completion=COLUMN"'),
        ('`judge="kind=MODEL"`', "--judge kind=MODEL"),
        ('`judge="a=MODEL" b=MODEL`', '--judge "a=MODEL" b=MODEL'),
        ("`optim='adamw-8bit'`", "--optim adamw-8bit"),
        ("`system='Think.'` and `system=\"it's\"`", '--system Think. and --system "it\'s"'),
        ('`chat_template=""`', '--chat-template ""'),
        ("`gradient_checkpointing=True`", "--gradient-checkpointing"),
        ("`greedy=False`", "--no-greedy"),
        ("`tis_cap=Falsehood`", "--tis-cap Falsehood"),
        ("`judge`; `seed`", "--judge; --seed"),
    ],
)
def test_parameters_in_backticks_become_flags(text: str, typed: str) -> None:
    assert as_typed(text) == typed
    assert as_typed(f"{text}; {text}") == f"{typed}; {typed}"
    assert as_typed(typed) == typed


@pytest.mark.parametrize(
    "text",
    [
        "messages",
        "'messages'",
        "has the answer '`seed=3`'",
        'returned "`seed`"',
        "`foo_bar=3` is no option",
        "a`seed`b",
        "--lora-rank 16",
        "`Conv1D`",
        "`a b`",
        "`a.b`",
        "`a-b`",
        "`_private`",
        "`trailing_`",
        "`two__parts`",
        "`1st`",
        "``lora_rank``",
        "``lora_rank` x",
        "```python\nlr\n```",
        "`lora_rank",
        "lora_rank`",
        "`lora_rank=`",
        "`lora_rank=16``",
        "`f(x=1)`",
        "a ` lora_rank ` b",
    ],
)
def test_anything_else_stays_as_it_is(text: str) -> None:
    assert as_typed(text) == text


@pytest.mark.parametrize("name", ["lr", "max_new_tokens", "top_k"])
def test_a_flag_is_what_the_command_line_makes_of_a_field(name: str) -> None:
    assert as_typed(f"`{name}`") == flag(name)


def test_what_other_programs_say_in_backticks_is_no_parameter() -> None:
    error = ValueError("pass `use_cache=True`.\nSee the docs")
    for said in (foreign(str(error)), first_line(error), described(error)):
        assert "'use_cache=True'" in said and as_typed(said) == said
    assert first_line(error) == "pass 'use_cache=True'"
    assert (first_line(KeyError()), first_line(ValueError("\n"))) == ("KeyError", "ValueError")
    assert as_typed(described(UserError("type `lr=1`"))) == "UserError: type --lr 1"
