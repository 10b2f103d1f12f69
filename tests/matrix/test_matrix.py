"""The support matrix. About a third of the cells runs with the other tests, all of them by `make matrix`."""

import pytest

from posttrain.errors import ModelError
from posttrain.models.support import TESTED
from tests.matrix.cells import CELLS, DAILY, RECIPES, check, train, write_data
from tests.matrix.families import FAMILIES, save_family
from tests.matrix.numbers import BOUND, policy_gaps, score_gaps
from tests.matrix.page import refusal

pytest.importorskip("peft")

NIGHTLY = [pytest.param(cell, id=str(cell), marks=() if cell in DAILY else pytest.mark.nightly) for cell in CELLS]
MODES = pytest.mark.parametrize("adapter", [False, True], ids=["all", "adapter"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A family's folder, made once."""
    root, made = tmp_path_factory.mktemp("families"), {}

    def of(family):
        if family not in made:
            made[family] = save_family(family, root / family.replace(" ", "-"))
        return made[family]

    return of


@pytest.mark.parametrize("cell", NIGHTLY)
def test_a_cell(cell, folder, tmp_path):
    """Three updates, a resume that ends in the same weights, and a folder that plain transformers reads alike."""
    if not refusal(cell.family, cell.recipe):
        check(cell, folder(cell.family), tmp_path)
        return
    write_data(tmp_path)
    with pytest.raises(ModelError) as caught:
        train(cell, folder(cell.family), tmp_path, output=tmp_path / "run")
    assert refusal(cell.family, cell.recipe) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@MODES
@pytest.mark.parametrize("family", [family for family in FAMILIES if not refusal(family, "sft")])
def test_logprobs_and_gradients_are_those_of_transformers_and_what_is_sampled_is_what_is_trained(
    family, adapter, folder
):
    gaps = policy_gaps(folder(family), adapter=adapter)
    assert max(gaps) < BOUND, gaps


@MODES
@pytest.mark.parametrize("family", [family for family in FAMILIES if not refusal(family, "reward-model")])
def test_scores_and_their_gradients_are_those_of_transformers(family, adapter, folder, tmp_path):
    gaps = score_gaps(folder(family), tmp_path, adapter=adapter)
    assert max(gaps) < BOUND, gaps


def test_what_is_called_tested_is_what_the_matrix_trains():
    assert {kind for family, (kind, _) in FAMILIES.items() if not refusal(family, "sft")} == TESTED


def test_the_cells_of_every_day_are_a_third_and_have_every_family_and_every_way():
    assert 0.3 < len(DAILY) / len(CELLS) < 0.37
    assert {cell.family for cell in DAILY} == set(FAMILIES)
    for adapter in (False, True):
        assert {cell.recipe for cell in DAILY if cell.adapter is adapter} == set(RECIPES)
