"""Tokenizer loading. The one file of this room that imports transformers."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posttrain.data.template_args import parse_template_args, with_defaults
from posttrain.errors import ModelError, TemplateError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as ChatTokenizer
else:
    ChatTokenizer = Any  # its import takes seconds: not every command needs it

_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_tokenizer(
    name: str | Path, chat_template: str = "", template_args: str | Mapping[str, object] = ""
) -> ChatTokenizer:
    """The tokenizer of a model folder or hub id. Whether it has a chat template is for `ChatFormat` to ask.

    Args:
        name: of the folder, or the hub id.
        chat_template: a Jinja file whose template takes the place of the tokenizer's own, also where it is saved.
        template_args: arguments of the template, such as `enable_thinking=false`, saved with it (`template_args.py`).

    Raises:
        ModelError: the folder has no tokenizer, there is no such folder or hub id, the hub cannot be reached, or a
            token has no row in the embedding of the model beside it.
        TemplateError: the template cannot be read, or is none.
        UserError: an argument that the template does not have.
    """
    from transformers import AutoTokenizer  # takes seconds: not every command needs it

    folder = Path(name).expanduser()
    if folder.is_dir() and not any((folder / file).exists() for file in _FILES):
        raise ModelError(
            f"the model folder '{name}' has no tokenizer (none of {', '.join(_FILES)}); copy it from the model that "
            f"this one was made from: cp BASE/tokenizer* BASE/*template* '{name}'"
        )
    if not folder.is_dir() and (str(name).startswith((".", "/", "~")) or str(name).count("/") > 1):
        raise ModelError(f"there is no model folder '{name}'; give an existing folder, or a hub id such as OWNER/NAME")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else str(name))
    except Exception as error:  # damaged files raise whatever the parser that met them raises
        raise ModelError(
            f"cannot load a tokenizer from '{name}': {first_line(error)}; give a model folder with a tokenizer.json, "
            "or check the name and the network"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of '{name}' has no fast version (tokenizer.json), which posttrain needs")
    _refuse_beyond_embedding(tokenizer, str(name))
    if chat_template:
        tokenizer.chat_template = _read_template(chat_template)
        _try(cast(ChatTokenizer, tokenizer), chat_template)
    if (args := parse_template_args(template_args)) and tokenizer.chat_template:
        tokenizer.chat_template = with_defaults(tokenizer.chat_template, args, tokenizer.special_tokens_map)
    return cast(ChatTokenizer, tokenizer)


def _refuse_beyond_embedding(tokenizer: Any, name: str) -> None:
    """Raise `ModelError` where a token has no row in the embedding of the model beside it, or of an adapter's base."""
    from transformers import AutoConfig

    about = Path(name).expanduser() / "adapter_config.json"
    try:
        model = json.loads(about.read_text(encoding="utf-8"))["base_model_name_or_path"] if about.is_file() else name
        rows = AutoConfig.from_pretrained(str(Path(model).expanduser())).get_text_config().vocab_size
    except Exception:  # there is none, or a damaged one: whoever loads the model says so
        return
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if last >= rows > 0:
        raise ModelError(
            f"the tokenizer of '{name}' has {last + 1} tokens, up to {token!r}, and the embedding of its model "
            f"{rows} rows (vocab_size in config.json); resize the embedding (resize_token_embeddings({last + 1}) of "
            "transformers), or remove the added tokens from tokenizer.json"
        )


def _read_template(file: str) -> str:
    """The template in a file."""
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TemplateError(f"cannot read `chat_template` '{file}': {reason}; give a Jinja file") from error
    if not text.strip():
        raise TemplateError(f"`chat_template` '{file}' is empty; give a Jinja file that renders 'messages'")
    return text


def _try(tokenizer: ChatTokenizer, file: str) -> None:
    """Render one message: an error that names the file is better than one of the first row."""
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    except Exception as error:  # a template raises whatever its author wanted
        number = getattr(error, "lineno", None)
        line = f" line {number}" if number else ""
        raise TemplateError(
            f"`chat_template` '{file}'{line} cannot be rendered: {first_line(error)}; give a Jinja file that renders "
            "'messages'"
        ) from error


_RENDERED = "{% set rendered %}"


def ending_at_stop(template: str) -> str:
    """A chat template that writes nothing behind the last turn's stop token: most end the line there.

    A reward model reads its score at the stop token; one token later, transformers would read another number.
    """
    if template.startswith(_RENDERED):
        return template
    return f"{_RENDERED}{template}{{% endset %}}{{{{ rendered if add_generation_prompt else rendered.rstrip() }}}}"


def padding_beside(tokenizer: ChatTokenizer, ends: Collection[int]) -> int:
    """A token to pad with that is none of `ends`, with which sequences end: the tokenizer's own, or a special one.

    Raises:
        ModelError: every special token is among them.
    """
    own = [] if tokenizer.pad_token_id is None else [tokenizer.pad_token_id]
    for token in [*own, *sorted(tokenizer.all_special_ids)]:
        if token not in ends:
            return token
    raise ModelError("every special token of the tokenizer ends a sequence, so none is left to pad with; add one")


def save_for_scores(tokenizer: ChatTokenizer, folder: Path, ends: Collection[int]) -> int:
    """Write a tokenizer next to a reward model, whose template ends where scores are read: at one of `ends`.

    Returns the token to pad with (`padding_beside`); errors as there.
    """
    padding = padding_beside(tokenizer, ends)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    own = tokenizer.chat_template  # text, or several by name: with and without tools
    tokenizer.chat_template = (
        {name: ending_at_stop(text) for name, text in own.items()} if isinstance(own, dict) else ending_at_stop(own)
    )
    tokenizer.save_pretrained(str(folder))
    return padding
