"""Whether a JSON value fits a schema, as far as calls of tools need it: its types, and what it holds.

Read are `type`, `nullable`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref` to a definition, `properties`,
`required`, `additionalProperties` and `items`. All else (bounds, patterns, formats) admits every value.
"""

import json
from types import NoneType
from typing import Any

_TYPES: dict[str, set[type]] = {
    "string": {str},
    "integer": {int},  # 1.0 is none here, since a function that counts with it would fail
    "number": {int, float},
    "boolean": {bool},
    "null": {NoneType},
    "array": {list},
    "object": {dict},
}


def misfit(value: Any, schema: Any, place: str = "", root: Any = None) -> str:
    """Why a value does not fit, such as "a must be integer, not true"; empty if it does, or if `schema` is none.

    `place` says where the value stands, and is empty for the arguments as a whole; `root` has the definitions.
    """
    if type(schema) is not dict or (value is None and schema.get("nullable") is True):  # OpenAPI's
        return ""
    root, name, shown = root or schema, place or "it", json.dumps(value, ensure_ascii=False)[:60]
    types = schema.get("type") or []
    types = [types] if isinstance(types, str) else types
    if types and not any(type(value) in _TYPES.get(kind, {type(value)}) for kind in types):
        return f"{name} must be {' or '.join(types)}, not {shown}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum") or []
    if allowed and not any(one == value and (type(one) is bool) == (type(value) is bool) for one in allowed):
        return f"{name} must be one of {json.dumps(allowed, ensure_ascii=False)}, not {shown}"
    for either in (schema.get("anyOf"), schema.get("oneOf")):
        reasons = [misfit(value, each, place, root) for each in either or []]
        if reasons and all(reasons):
            return ", or ".join(dict.fromkeys(reasons))
    named = {f"#/{at}/{key}": each for at in ("$defs", "definitions") for key, each in (root.get(at) or {}).items()}
    parts = [(value, each, place) for each in (*(schema.get("allOf") or []), named.get(str(schema.get("$ref"))))]
    if type(value) is list:
        parts += [(item, schema.get("items"), f"{place}[{number}]") for number, item in enumerate(value)]
    if type(value) is dict:
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        inside = f"{place}." if place else ""
        if missing := [key for key in schema.get("required") or [] if key not in value]:
            return f"{inside}{missing[0]} is missing"
        unknown = [key for key in value if key not in known]
        if unknown and others is False and "patternProperties" not in schema:
            return f"{inside}{unknown[0]} is unknown; known are: {', '.join(known)}"
        parts += [(item, known.get(key, others), inside + key) for key, item in value.items()]
    return next(filter(None, (misfit(*part, root) for part in parts)), "")
