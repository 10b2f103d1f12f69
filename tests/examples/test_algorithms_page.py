"""docs/algorithms.md is what the algorithms say of themselves. Run as a program, this writes it anew."""

import re
from pathlib import Path

from posttrain import catalogue
from posttrain.algorithms import ALGORITHMS

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def test_the_page_in_docs_is_current():
    said = PAGE.read_text(encoding="utf-8")
    assert said == catalogue.page(), "type: python -m tests.examples.test_algorithms_page"
    links, anchors = (re.findall(pattern, said) for pattern in (r"\]\(#([^)]*)\)", r'<a id="([^"]*)">'))
    assert links == anchors and len(set(anchors)) == len(ALGORITHMS)


if __name__ == "__main__":
    PAGE.write_text(catalogue.page(), encoding="utf-8")
