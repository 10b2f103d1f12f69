"""The lists of mutations fit the source as it is now; `make mutants` runs them."""

import pytest

from tests import mutants
from tests.mutations import Mutation, collect


@pytest.mark.parametrize("mutation", collect(), ids=lambda m: f"{m.file}: {m.old.strip()[:40]}")
def test_a_mutation_changes_exactly_one_place_and_its_tests_exist(mutation: Mutation) -> None:
    source = (mutants.ROOT / "src" / "posttrain" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1
    assert mutation.new != mutation.old
    assert mutation.tests.split()
    assert all((mutants.ROOT / "tests" / name.partition("::")[0]).exists() for name in mutation.tests.split())
