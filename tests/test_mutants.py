"""The lists of mutations fit the source as it is now; `make mutants` runs them."""

import pytest

from tests import mutants
from tests.mutations import Mutation, collect, objectives


def test_each_changes_exactly_one_place_and_its_tests_exist() -> None:
    def fits(mutation: Mutation) -> bool:
        source = (mutants.ROOT / "src" / "posttrain" / mutation.file).read_text(encoding="utf-8")
        tests = [mutants.ROOT / "tests" / name.partition("::")[0] for name in mutation.tests.split()]
        once = source.count(mutation.old) == 1 and mutation.new != mutation.old
        return once and bool(tests) and all(path.exists() for path in tests)

    assert [f"{m.file}: {m.old}" for m in collect() if not fits(m)] == []


def test_a_list_has_no_room_whose_mutants_are_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        objectives, "MUTATIONS", [*objectives.MUTATIONS, Mutation("statistics.py", "a", "b", "test_a.py")]
    )
    with pytest.raises(ValueError, match=r"^statistics\.py gets generated mutants"):
        collect()
