"""Safe Markdown rendering of model output: nothing is executed or fetched.

Raw HTML in the text is shown as text. The rendered Markdown still passes a sanitiser with a short allow-list of
tags: no scripts, styles, frames, forms or images. Links open in a new tab without a referrer.
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
    """Untrusted text as safe HTML."""
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
