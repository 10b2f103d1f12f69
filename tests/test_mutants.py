"""The lists of mutations fit the source as it is now; `make mutants` runs them."""

import pytest

from tests import mutants, mutations
from tests.mutations import Mutation, collect, objectives


@pytest.mark.parametrize("mutation", collect(), ids=lambda m: f"{m.file}: {m.old.strip()[:40]}")
def test_a_mutation_changes_exactly_one_place_and_its_tests_exist(mutation: Mutation) -> None:
    source = (mutants.ROOT / "src" / "posttrain" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1
    assert mutation.new != mutation.old
    assert mutation.tests.split()
    assert all((mutants.ROOT / "tests" / name.partition("::")[0]).exists() for name in mutation.tests.split())


@pytest.mark.parametrize("file", ["data/chat.py", "statistics.py", "objectives.py"])
def test_a_list_has_no_room_whose_mutants_are_generated(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setattr(objectives, "MUTATIONS", [*objectives.MUTATIONS, Mutation(file, "a", "b", "test_a.py")])
    with pytest.raises(ValueError, match=f"^{file} gets generated mutants"):
        collect()


def test_every_room_with_a_list_is_there() -> None:
    assert {mutations.room_with_list(m.file) for m in collect()} == {*mutations.ROOMS}
