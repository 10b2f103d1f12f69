import pytest

from posttrain.data import ChatFormat
from posttrain.episodes.prompt_filter import fitting
from posttrain.errors import UserError
from posttrain.types import Message, Task
from tests.data.families import of_family
from tests.recipes.folders import model_folder

CHAT = ChatFormat(of_family("smollm2"))


def task(letters: int) -> Task:
    """One letter is one token."""
    return Task((Message("user", "x" * letters),), id=f"{letters} letters")


AROUND = len(CHAT.prompt_ids(task(0).prompt))  # tokens of the template


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("models") / "model", context=200))


def test_a_prompt_fits_if_one_new_token_does(folder):
    tasks = [task(1), task(199 - AROUND)]
    assert fitting(tasks, folder) == tasks
    with pytest.raises(
        UserError, match=f"'{200 - AROUND} letters' has 200 tokens, but a run holds 200 .* one of them new"
    ):
        fitting([*tasks, task(200 - AROUND)], folder, title="a run")


def test_with_a_limit_longer_ones_are_left_out(folder):
    tasks = [task(5), task(9), task(10), task(150)]
    assert fitting(tasks, folder, max_prompt_tokens=AROUND + 9) == tasks[:2]
    # the context limits too, whatever the limit says
    assert fitting([*tasks[:1], task(400)], folder, max_prompt_tokens=1000) == tasks[:1]


def test_something_must_be_left(folder):
    with pytest.raises(UserError, match="all 2 prompts have more than 3 tokens"):
        fitting([task(5), task(6)], folder, max_prompt_tokens=3)
