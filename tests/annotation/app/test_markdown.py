"""Whatever a model writes, nothing of it runs, and nothing is fetched."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.annotation.app.security import cleaned, rendered

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![a](https://example.org/pixel.png)",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](vbscript:x)",
    "<a href='javascript:x'>a</a>",
    "<svg onload=alert(1)>",
    "<iframe src=//example.org></iframe>",
    "<form action=//example.org><input name=password></form>",
    "<style>*{display:none}</style>",
    "<base href=//example.org>",
    '"><script>x</script>',
    "`<script>`",
    "```html\n<script>x</script>\n```",
    "[a]: javascript:x\n\n[a]",
    '<https://example.org/"onmouseover=alert(1)>',
    "<a onclick=x>a</a>",
    "[x](https://example.org 'title\" onclick=\"alert(1)')",
    "&lt;script&gt;x&lt;/script&gt;",
]
ALLOWED = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "strong", "em", "s"),
    *("code", "pre", "table", "thead", "tbody", "tr", "th", "td", "a"),
}


def harmless(html):
    for name, attributes in re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)((?:[^>\"]|\"[^\"]*\")*)>", html):
        assert name in ALLOWED, html
        for attribute, value in re.findall(r"([\w-]+)=\"([^\"]*)\"", attributes):
            assert attribute in ("href", "rel", "target", "start"), html
            assert attribute != "href" or value.startswith(("http://", "https://")), html
    assert "<script" not in html and "<img" not in html


@pytest.mark.parametrize("text", ATTACKS)
def test_attacks_are_shown_and_do_nothing(text):
    harmless(rendered(text))


@pytest.mark.parametrize("html", ATTACKS)
def test_a_reader_that_let_html_through_would_not_do_harm_either(html):
    harmless(cleaned(f"<p>{html}</p>"))
    assert cleaned("<p>a<script>b</script>c</p>") == "<p>ac</p>"


@given(
    parts=st.lists(st.sampled_from(ATTACKS) | st.text(alphabet="<>\"'`[]()!*_#-= \n\tax:/&;", max_size=12), max_size=6)
)
def test_no_mixture_of_them_does_anything(parts):
    harmless(rendered("".join(parts)))


def test_markdown_looks_like_markdown():
    html = rendered(
        "# T\n\n1. *a*\n2. **b** `c`\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n[l](https://example.org/?a=1&b=2)"
    )
    for part in ("<h1>T</h1>", "<em>a</em>", "<strong>b</strong>", "<code>c</code>", "<td>1</td>"):
        assert part in html
    assert 'href="https://example.org/?a=1&amp;b=2"' in html
    assert 'rel="noopener noreferrer nofollow"' in html and 'target="_blank"' in html


def test_a_tag_that_is_only_talked_about_can_be_read():
    assert "&lt;script&gt;" in rendered("use <script> here")


def test_a_line_that_was_ended_stays_a_line():
    assert rendered("8 are left.\nShe buys 4.\n\n12").split() == [
        "<p>8",
        "are",
        "left.<br>",
        "She",
        "buys",
        "4.</p>",
        "<p>12</p>",
    ]
