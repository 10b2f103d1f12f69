"""What fits a JSON schema, and what is said of what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.json_schema import misfit

OF_TYPE = {
    "string": ["", "1", "null"],
    "integer": [0, -3],
    "number": [1.0, -0.5],
    "boolean": [True, False],
    "null": [None],
    "array": [[], [1]],
    "object": [{}, {"a": 1}],
}


@pytest.mark.parametrize("kind", OF_TYPE)
def test_a_value_is_of_its_own_types_alone(kind):
    for other, values in OF_TYPE.items():
        for value in values:
            is_one = other == kind or (kind == "number" and other == "integer")
            assert bool(misfit(value, {"type": kind})) is not is_one, value


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
OPTIONAL = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": ["integer", "null"]}, None, ""),
        ({"type": ["integer", "null"]}, "1", 'v must be integer or null, not "1"'),
        ({"type": "integer", "nullable": True}, None, ""),
        ({"type": "integer", "nullable": True}, "a", 'v must be integer, not "a"'),
        ({"enum": [1, "a"]}, 1.0, ""),
        ({"enum": [1, "a"]}, True, 'v must be one of [1, "a"], not true'),
        ({"enum": [True]}, 1, "v must be one of [true], not 1"),
        ({"const": None}, 0, "v must be one of [null], not 0"),
        ({"const": None}, None, ""),
        (OPTIONAL, None, ""),
        (OPTIONAL, 1, ""),
        (OPTIONAL, "1", 'v must be integer, not "1", or v must be null, not "1"'),
        ({"oneOf": [{"type": "string"}, POINT]}, {"x": 1}, ""),
        (
            {"oneOf": [{"type": "string"}, POINT]},
            {"x": "1"},
            'v must be string, not {"x": "1"}, or v.x must be integer, not "1"',
        ),
        ({"allOf": [{"type": "integer"}, {"enum": [1]}]}, 2, "v must be one of [1], not 2"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], ""),
        ({"type": "array", "items": {"type": "integer"}}, [1, "2"], 'v[1] must be integer, not "2"'),
        (POINT, {"x": 1}, ""),
        (POINT, {}, "v.x is missing"),
        (POINT, {"x": 1, "y": 2}, "v.y is unknown; known are: x"),
        ({**POINT, "patternProperties": {"^y": {}}}, {"x": 1, "y": 2}, ""),
        ({**POINT, "additionalProperties": {"type": "string"}}, {"x": 1, "y": 2}, "v.y must be string, not 2"),
        ({"properties": {"x": {"type": "integer"}}}, {"y": 2}, ""),
        ({"properties": {"x": POINT}}, {"x": {"x": None}}, "v.x.x must be integer, not null"),
        ({"items": POINT}, [{"x": 1}, {"x": "1"}], 'v[1].x must be integer, not "1"'),
        ({"$ref": "#/$defs/Point", "$defs": {"Point": POINT}}, {}, "v.x is missing"),
        ({"$ref": "#/definitions/Point", "definitions": {"Point": POINT}}, {}, "v.x is missing"),
        ({"items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}}, [{}], "v[0].x is missing"),
        ({"$ref": "https://example.com/point.json"}, {}, ""),  # what is not known admits everything
        ({"type": "float"}, "1", ""),
        ({"type": "string", "maxLength": 1}, "abc", ""),
        ({}, "1", ""),
        (None, "1", ""),
        (True, "1", ""),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(schema, value, said):
    assert misfit(value, schema, "v") == said


def test_the_whole_has_no_place_and_a_long_value_is_cut():
    assert misfit([1], POINT) == "it must be object, not [1]"
    assert misfit({"x": "a" * 999}, POINT) == f'x must be integer, not "{"a" * 59}'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def schema_of(value):
    """The narrowest schema of a value."""
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    found = {"type": kind.get(type(value), "null")}
    if isinstance(value, list):
        found["items"] = {"anyOf": [schema_of(item) for item in value]} if value else {}
    if isinstance(value, dict):
        found |= {"properties": {key: schema_of(item) for key, item in value.items()}, "required": list(value)}
        found["additionalProperties"] = False
    return found


@given(VALUES)
def test_every_value_fits_its_own_schema_and_its_own_enum(value):
    assert misfit(value, schema_of(value)) == misfit(value, {"const": value}) == ""
