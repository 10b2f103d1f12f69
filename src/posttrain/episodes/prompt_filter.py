"""Prompt-length filter, applied before weights are read."""

from collections.abc import Mapping, Sequence

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.models.footprint import read_shape
from posttrain.models.load import tokenizer_of
from posttrain.types import Task


def fitting(
    tasks: Sequence[Task],
    model: str,  # a folder, hub id, or packaged model
    *,
    max_prompt_tokens: int | None = None,  # None where nothing may be left out
    title: str = "",  # what to call the model in errors
    chat_template: str = "",  # a Jinja file in place of the tokenizer's own template
    template_args: str | Mapping[str, object] = "",
) -> list[Task]:
    """The tasks whose prompts have at most `max_prompt_tokens` tokens and fit the context with one new token."""
    chat = ChatFormat(load_tokenizer(tokenizer_of(model), chat_template, template_args))
    context = read_shape(model).context
    most = context - 1 if max_prompt_tokens is None else min(context - 1, max_prompt_tokens)
    kept: list[Task] = []
    for task in tasks:
        if (length := len(chat.prompt_ids(task.prompt))) <= most:
            kept.append(task)
        elif max_prompt_tokens is None:
            raise UserError(
                f"the prompt of task '{task.id}' has {length} tokens, but {title or model} holds {context} with at "
                f"least one of them new; shorten it, or leave such prompts out with `max_prompt_tokens={context // 2}`"
            )
    if not kept:
        raise UserError(f"all {len(tasks)} prompts have more than {most} tokens; give a larger `max_prompt_tokens`")
    return kept
