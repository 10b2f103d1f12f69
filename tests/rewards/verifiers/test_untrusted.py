import pytest

from posttrain.rewards.verifiers.gym import literal, plain_expression


@pytest.mark.parametrize(
    "text", ["1", "(4 + 8) * 3 / 2", "-x**3/3 + 2*x*y2", "sin(x) + sqrt(2)*E", " 3 ", "log(x, 2)", "w_1"]
)
def test_plain_expressions_pass_unchanged(text):
    assert plain_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "x.y",
        "x[0]",
        "lambda: 1",
        "'text'",
        "open(1)",
        "x(1)",
        "exec(1)",
        "sin(x=1)",
        "sin.__class__",
        "[1]",
        "f'{x}'",
        "x if y else z",
        "(x := 1)",
        "[x for x in y]",
        "exit",
        "eval",
        "b'1'",
        "1j",
        "...",
        "not x",
        "x < y",
        "sin(*x)",
        "x_y",
        "_",
        "__",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="plain"):
        plain_expression(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[1, [2, -3]]", [1, [2, -3]]),
        ("('a', 'b')", ("a", "b")),
        ("0x10 >> 2", 4),
        ("~1 + 2**3", 6),
        ("7 // 2 % 2 / 2", 0.5),
        ("(6 & 3) | 8 ^ 1", 11),
        ("1 << 3", 8),
        ("+5 - 2 * 2", 1),
    ],
)
def test_literals(text, expected):
    assert literal(text) == expected == eval(text)


@pytest.mark.parametrize(
    "text", ["x", "f(1)", "[0] * 10", "'a' + 'b'", "[x for x in []]", "x.y", "{1: 2}", "not 1", "[] @ []", "f'{1}'"]
)
def test_nothing_else_is_evaluated(text):
    with pytest.raises(ValueError, match="plain value"):
        literal(text)


def test_values_are_read_and_calls_are_not():
    assert literal("[[0x10 - 2, 'Q'], []]") == [[14, "Q"], []]
    assert plain_expression("(4 + 8) * sin(x)") == "(4 + 8) * sin(x)"
    with pytest.raises(ValueError, match="not a plain expression: Call"):
        plain_expression("__import__('os').system('ls')")


@pytest.mark.parametrize(
    "text",
    [
        *("9**9**9", "(9**9)**9", "2**(9*9)", "2**10000", "2**-10000", "1<<99999", "2**(1<<9)", "x**10000"),
        *("7**5000 * 7**5000", "7**-5000 / 7**5000 - 1", "(1 << 5000) + (1 << 5000)"),
    ],
)
def test_what_would_be_large_is_not_evaluated(text):
    for read in (plain_expression, literal):
        with pytest.raises(ValueError, match="too large"):
            read(text)


def test_what_mathematics_needs_is_not_large():
    for text in ("x**(3/2)", "E**(x**2)", "(x**2 + 1)**3", "2**9999", "exp(2*x)", "(2*x)**2", "E**(2*x)"):
        assert plain_expression(text) == text
    assert literal("2**10 + (1 << 4)") == 1040
