"""docs/models.md has the matrix's rows, words and reasons; its numbers are within the bound."""

from tests.matrix.families import FAMILIES
from tests.matrix.numbers import BOUND
from tests.matrix.page import PAGE, measured_in, page, refusal


def test_the_page_in_docs_is_current():
    said = PAGE.read_text(encoding="utf-8")
    measured = measured_in(said)
    assert said == page(measured), "type: python -m tests.matrix.page"
    assert set(measured) == {family for family in FAMILIES if not refusal(family, "sft")}
    assert all(gap < BOUND for gaps in measured.values() for gap in gaps)
