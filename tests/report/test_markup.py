import doctest
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from posttrain.report import markup
from posttrain.report.markup import escape


class Page(HTMLParser):
    """The elements, attributes and text that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters() | st.sampled_from("<>&\"'/=!-\0\u202e\ud800"), max_size=40))
def test_no_text_becomes_markup_between_tags_or_in_an_attribute(text: str) -> None:
    escaped = escape(text)
    assert not set("<>\"'") & set(escaped)
    seen = Page(f'<p title="{escaped}">{escaped}</p>')
    assert seen.tags == ["p"] and seen.attributes == [("title", seen.text)]
    escaped.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf", "Cn"])))
def test_ordinary_text_is_read_as_it_was_written(text: str) -> None:
    assert Page(f"<p>{escape(text)}</p>").text == text


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert escape("\x00\x1b[31m\x7f\t\n") == "\u2400\u241b[31m\u2421\t\n"
    assert escape("a\u202egpj.exe\u2066") == "a[U+202E]gpj.exe[U+2066]"
    assert escape("\ud800\x9b\uffff") == "\ufffd" * 3
    assert escape("a\r\nb\rc") == "a\nb\u240dc"


def test_a_long_text_is_cut_before_it_is_escaped() -> None:
    assert escape("<" * 10, limit=3) == "&lt;&lt;&lt; … 7 more characters"
    assert escape("x" * 1_000_000, limit=10).endswith("… 999,990 more characters")
    assert escape("abc", limit=3) == "abc"


def test_docstring_examples_run() -> None:
    results = doctest.testmod(markup)
    assert results.failed == 0 and results.attempted >= 1
