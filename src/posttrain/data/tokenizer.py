"""Tokenizer loading, arguments of a chat template, and ends of tokens. The one file here that imports transformers.

Arguments such as `enable_thinking=false` become the defaults of the template's own variables, in lines in front of it.
So they are saved with the tokenizer, and whatever renders by it later uses them: sampling, training, scoring, an
exported model in another tool. An argument that a later command gives takes the place of that default.
"""

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posttrain.errors import ModelError, TemplateError, UserError, first_line, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as ChatTokenizer
else:
    ChatTokenizer = Any  # its import takes seconds: not every command needs it

_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_tokenizer(
    name: str | Path, chat_template: str = "", template_args: str | Mapping[str, object] = ""
) -> ChatTokenizer:
    """The tokenizer of a model folder or hub id. Whether it has a chat template is for `ChatFormat` to ask.

    That of the Jinja file `chat_template` takes the place of its own, with `template_args` such as
    `enable_thinking=false`, also where the tokenizer is saved.
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
        _set_template(tokenizer, chat_template)
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


def _set_template(tokenizer: Any, file: str) -> None:
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TemplateError(f"cannot read `chat_template` '{file}': {reason}; give a Jinja file") from error
    if not text.strip():
        raise TemplateError(f"`chat_template` '{file}' is empty; give a Jinja file that renders 'messages'")
    tokenizer.chat_template = text
    try:  # an error that names the file is better than one of the first row
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
    """A token to pad with that is none of `ends`, with which sequences end: the tokenizer's own, or a special one."""
    own = [] if tokenizer.pad_token_id is None else [tokenizer.pad_token_id]
    for token in [*own, *sorted(tokenizer.all_special_ids)]:
        if token not in ends:
            return token
    raise ModelError("every special token of the tokenizer ends a sequence, so none is left to pad with; add one")


def save_for_scores(tokenizer: ChatTokenizer, folder: Path, ends: Collection[int]) -> int:
    """Write a tokenizer next to a reward model whose scores are read at one of `ends`; returns what to pad with."""
    padding = padding_beside(tokenizer, ends)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    own = tokenizer.chat_template  # text, or several by name: with and without tools
    tokenizer.chat_template = (
        {name: ending_at_stop(text) for name, text in own.items()} if isinstance(own, dict) else ending_at_stop(own)
    )
    tokenizer.save_pretrained(str(folder))
    return padding


_RESERVED = frozenset(
    ("messages", "conversation", "tools", "xml_tools", "documents", "add_generation_prompt", "continue_final_message")
) | {"raise_exception", "strftime_now"}
# trim_blocks, with which chat templates are rendered, removes the line break
_DEFAULT = re.compile(r"\{% set (\w+) = \1 if \1 is defined else .* %\}\n")
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # a tag of transformers, around the assistant's turns


def parse_template_args(text: str | Mapping[str, object]) -> dict[str, Any]:
    """Arguments as they are typed: NAME=VALUE words, whose values are JSON, or else text; or as they are in a table."""
    if isinstance(text, Mapping):
        return dict(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"cannot read `template_args` {text!r}: {first_line(error)}; {_FORM}") from error
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"cannot read '{word}' of `template_args`; {_FORM}")
        if name in found:
            raise UserError(f"`template_args` gives '{name}' twice; keep one")
        try:
            found[name] = json.loads(value, parse_constant=str)
        except ValueError:
            found[name] = value
    return found


_FORM = "write NAME=VALUE, such as enable_thinking=false"


def with_defaults(template: str | Mapping[str, str], args: Mapping[str, Any], special: Iterable[str] = ()) -> Any:
    """A chat template, or several by name, in which these arguments are defaults; earlier ones of the same names go.

    `special` are the names of the tokenizer's special tokens, such as `bos_token`.
    """
    several = {"": template} if isinstance(template, str) else template
    reserved = _RESERVED | {*special}
    names = {name for text in several.values() for name in _variables(text)} - reserved
    for name in args:
        if name in reserved:
            raise UserError(f"'{name}' of `template_args` is set by the conversation or the tokenizer; leave it out")
        if not names:
            raise UserError(f"the chat template has no variables, so there is no '{name}'; leave out `template_args`")
        if name not in names:
            raise unknown("name of `template_args`", name, names)
    lines = {name: f"{{% set {name} = {name} if {name} is defined else {value!r} %}}\n" for name, value in args.items()}
    found: dict[str, str] = {}
    for key, text in several.items():
        earlier: dict[str, str] = {}
        while line := _DEFAULT.match(text):
            earlier[line[1]], text = line[0], text[line.end() :]
        found[key] = "".join({**earlier, **lines}.values()) + text
    return found[""] if isinstance(template, str) else found


def _variables(template: str) -> set[str]:
    """The names that a template reads from outside: it does not set them, or asks whether they are defined."""
    from jinja2 import Environment, TemplateSyntaxError, meta, nodes  # takes 0.1 s: not every command needs it

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(_GENERATION.sub("", template))
    except TemplateSyntaxError as error:
        raise TemplateError(f"the chat template cannot be read: line {error.lineno}: {first_line(error)}") from error
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    questions = [one for one in tree.find_all((nodes.Test, nodes.Filter)) if one.name in _ASKS_IF_DEFINED]
    asked = {one.node.name for one in questions if isinstance(one.node, nodes.Name)}
    return meta.find_undeclared_variables(tree) - (own - asked)


_ASKS_IF_DEFINED = ("defined", "undefined", "default", "d")


Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"  # what decoders write for bytes that are no character, or none yet


def token_ends(decode: Decode, token_ids: Sequence[int]) -> list[int]:
    """After each token, how many characters of `decode(token_ids)` are complete; after the last one, all of them.

    A character ends with the token that completes it: it may be spread over several, and some tokenizers write a word
    differently at the beginning of a text, so tokens are decoded after their predecessors. Bytes that are no character
    end with the token that shows it. Takes two short calls of `decode` for each token.

    Example:
        >>> token_ends(lambda ids: bytes(ids).decode(errors="replace"), [72, 226, 130, 172])  # H, and three bytes of €
        [1, 1, 1, 2]
    """
    text, ends = decode(token_ids), list[int]()
    said = before = ""  # the text as it is put together: each new piece is decoded behind the one before it alone
    shown = first = 0  # the last piece is from token `shown` to token `first`
    for number in range(1, len(token_ids) + 1):
        now = decode(token_ids[shown:number])
        complete = now if number == len(token_ids) else now.rstrip(_UNFINISHED)
        ends.append(len(said) + max(0, len(complete) - len(before)))
        if complete == now:
            said += now[len(before) :]
            shown, first = first, number
            before = decode(token_ids[shown:first])
    return ends if said == text else _by_prefixes(decode, token_ids, text)


def _by_prefixes(decode: Decode, token_ids: Sequence[int], text: str) -> list[int]:
    """The same by decoding every beginning, for tokens that more than the piece before them changes."""
    begun = (decode(token_ids[:number]).rstrip(_UNFINISHED) for number in range(1, len(token_ids)))
    return list(accumulate([*(_alike(part, text) for part in begun), len(text)], max))


def _alike(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
