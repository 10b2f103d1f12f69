"""What the server takes as a base model."""

import json

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from posttrain.errors import UserError
from posttrain.options.services import Server
from posttrain.recipes import sft
from posttrain.recipes.server import load_base
from tests.recipes.folders import model_folder


@pytest.fixture
def run(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model, data = str(model_folder(tmp_path / "model")), str(tmp_path / "rows.jsonl")
    options = sft.SFT(model=model, dataset=data, examples_per_step=1, steps=1, lr=1e-2, warmup_steps=0)
    return sft.run(options, output=tmp_path / "run", quiet=True).run


def test_a_run_is_served_by_what_it_has_learned(run, tmp_path):
    learned = load_base(Server(model=str(run), served_name="mine", precision="float32"))
    begun = load_base(Server(model=str(tmp_path / "model"), precision="float32"))
    assert learned.name == "mine" and learned.vocabulary == begun.vocabulary
    assert not learned.model.embedding.equal(begun.model.embedding)


def test_a_name_that_is_nearly_a_run_is_an_error_that_names_it(run, tmp_path):
    with pytest.raises(UserError, match="did you mean 'run'"):
        load_base(Server(model=str(tmp_path / "runn")))
