"""Arguments of a chat template, such as `enable_thinking=false`.

They become the defaults of the template's own variables, in lines in front of it. So they are saved with the tokenizer,
and whatever renders by it later uses them: sampling, training, scoring, an exported model in another tool. An argument
that a later command gives takes the place of that default.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from posttrain.errors import TemplateError, UserError, first_line, unknown

_RESERVED = frozenset(
    ("messages", "conversation", "tools", "xml_tools", "documents", "add_generation_prompt", "continue_final_message")
) | {"raise_exception", "strftime_now"}
# trim_blocks, with which chat templates are rendered, removes the line break
_DEFAULT = re.compile(r"\{% set (\w+) = \1 if \1 is defined else .* %\}\n")
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # a tag of transformers, around the assistant's turns


def parse_template_args(text: str | Mapping[str, object]) -> dict[str, Any]:
    """Arguments as they are typed: NAME=VALUE words, whose values are JSON, or else text; or as they are in a table.

    Raises:
        UserError: not of this form, or a name twice.

    Example:
        >>> parse_template_args("enable_thinking=false date_string='26 Jul 2024'")
        {'enable_thinking': False, 'date_string': '26 Jul 2024'}
    """
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
    """A chat template, or several by name, in which these arguments are defaults.

    Args:
        template: Jinja.
        args: by name; earlier defaults of the same names go.
        special: the names of the tokenizer's special tokens, such as `bos_token`.

    Raises:
        UserError: a name that is no variable of the template, or that the conversation or the tokenizer sets.
        TemplateError: the template is no Jinja.
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
    found = {key: _set(text, lines) for key, text in several.items()}
    return found[""] if isinstance(template, str) else found


def _set(template: str, lines: Mapping[str, str]) -> str:
    earlier: dict[str, str] = {}
    while line := _DEFAULT.match(template):
        earlier[line[1]] = line[0]
        template = template[line.end() :]
    return "".join({**earlier, **lines}.values()) + template


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
