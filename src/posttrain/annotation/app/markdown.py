"""Safe Markdown rendering of model output: nothing is executed or fetched.

Raw HTML in the text is shown as text. What Markdown makes of it goes through a sanitiser all the same, which keeps a
short list of tags: no scripts, styles, frames, forms or images. Links open elsewhere and tell nobody where from.
"""

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "strong", "em", "s"),
    *("code", "pre", "table", "thead", "tbody", "tr", "th", "td", "a"),
}
_READER = (
    # a line that a model ended is a line: joined ones would be other words than those that are judged
    MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    .enable(["table", "strikethrough"])
    .disable("image")
)


def rendered(text: str) -> Markup:
    """Text of anybody's as safe HTML."""
    return cleaned(_READER.render(text))


def cleaned(html: str) -> Markup:
    """HTML without what could run, fetch or style anything."""
    kept = nh3.clean(
        html,
        tags=_TAGS,
        attributes={"*": set(), "a": {"href"}, "ol": {"start"}},
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return Markup(kept)
