import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from posttrain.data.packing import Example, pack
from posttrain.errors import ModelError
from posttrain.models.attributes import AttributeModel, Gate, Mixture, RatingScale, even, load_attributes, load_scores
from posttrain.models.heads import complete, load_reward_model
from posttrain.models.lora import Lora
from tests.models.test_heads import plain_scores, tiny_reward_model
from tests.recipes.folders import model_folder

UNITS = RatingScale(("helpful", "clear", "long"), (4.0, 3.0, 1.0), (1.0, 2.0, 0.5))
EXAMPLES = [
    Example((5, 9, 3), (4, 8, 1), (True,) * 3),
    Example((5, 9, 3), (7, 1), (True,) * 2),
    Example((2, 2), (11,), (True,)),
    Example((6,), (11, 3), (True,) * 2),
]


def drawn(gate: Gate, seed: int = 0) -> Gate:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return gate


def tiny_attributes(seed: int = 0, dtype: torch.dtype = torch.float64) -> AttributeModel:
    body = tiny_reward_model(seed, dtype, members=3).body
    return AttributeModel(body, UNITS, even(body, [1.0, 2.0, -0.5], width=5, seed=seed))


def by_hand(gate: Gate, h: list[float]) -> list[float]:
    """g(x) in plain floats."""
    weights = {name: value.tolist() for name, value in gate.state_dict().items()}

    def layer(name: str, values: list[float]) -> list[float]:
        rows = zip(weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + bias for row, bias in rows]

    powers = [math.exp(x) for x in layer("outer", [max(0.0, x) for x in layer("inner", h)])]
    return [power / sum(powers) for power in powers]


def test_a_gate_by_hand_and_even_before_it_has_learned():
    gate = Gate(4, 3, 5)
    assert gate(torch.randn(2, 4)).tolist() == pytest.approx([pytest.approx([1 / 3] * 3)] * 2)
    h = [0.5, -1.0, 2.0, 0.1]
    assert drawn(gate)(torch.tensor([h]))[0].tolist() == pytest.approx(by_hand(gate, h), rel=1e-5)


def test_a_mixture_by_hand():
    gate = drawn(Gate(2, 3, 4))
    mixture = Mixture(gate, (1.0, 2.0, -0.5), 3.0, 0.25, apart=2, shares=(0.5, -1.0, 1.0))
    prompt, a = [0.3, -0.7], [1.0, -2.0, 4.0]
    g = by_hand(gate, prompt)
    counted = [1.0 * (1.0 - 0.5 * 4.0), 2.0 * (-2.0 + 4.0), 0.0]
    expected = 3.0 * sum(weight * value for weight, value in zip(g, counted, strict=True)) - 0.25
    found = mixture.scores(torch.tensor([prompt]), torch.tensor([a]))
    assert found.tolist() == pytest.approx([expected], rel=1e-5)
    first = mixture._replace(apart=0, shares=(1.0, -1.0, 0.5))
    assert first.counted(torch.tensor([a])).tolist() == [[0.0, -2.0, -1.75]]
    plain = mixture._replace(apart=None, shares=())
    assert plain.counted(torch.tensor([a])).tolist() == [[1.0, -4.0, -2.0]]


@pytest.mark.parametrize("microbatch_tokens", [7, 100])
def test_each_response_is_read_with_the_state_of_its_own_prompt(microbatch_tokens):
    model = tiny_attributes()
    drawn(model.mixture.gate)
    seen = 0
    for row in pack(EXAMPLES, microbatch_tokens):
        read, scores = model.read(row), model.scores(row)
        for place, number in enumerate(row.examples):
            example = EXAMPLES[number]
            (alone,) = pack([Example((), example.prefix, (False,) * len(example.prefix))], 100)
            prompt = model.body.states(alone)[-1]
            assert read.prompts_ED[place].tolist() == pytest.approx(prompt.tolist(), rel=1e-4, abs=1e-5)
            attributes = plain_scores(model_of_three(model), [*example.prefix, *example.continuation])
            assert read.attributes_EK[place].tolist() == pytest.approx(attributes, rel=1e-4, abs=1e-5)
            g = by_hand(model.mixture.gate, prompt.tolist())
            terms = zip(g, (1.0, 2.0, -0.5), attributes, strict=True)
            assert scores[place].item() == pytest.approx(3 * sum(g * w * a for g, w, a in terms), rel=1e-3)
            seen += 1
    assert seen == len(EXAMPLES)


def model_of_three(model: AttributeModel):
    """The same heads as an ensemble, which transformers reads."""
    return type("Heads", (), {"body": model.body, "members": 3})()


def test_a_sequence_without_a_prompt_is_refused():
    (row,) = pack([Example.whole([5, 9], [False, True])], 100)
    with pytest.raises(AssertionError, match="without a prompt"):
        tiny_attributes().read(row)


def test_what_is_saved_scores_the_same_and_transformers_reads_the_attributes(tmp_path: Path):
    model = load_attributes(
        str(model_folder(tmp_path / "model")), UNITS.names, [1.0, 2.0, -0.5], dtype=torch.float32, seed=3, width=5
    )
    assert not model.body.network.score.weight.any()  # the mean of each
    assert model.units == RatingScale(UNITS.names, (0.0,) * 3, (1.0,) * 3)
    model.units = UNITS
    drawn(model.mixture.gate)
    with torch.no_grad():
        model.body.network.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    model.mixture = model.mixture._replace(scale=0.7, zero=0.3, apart=2, shares=(0.1, 0.2, 1.0), comparable=True)
    model.write(tmp_path / "saved")
    complete(tmp_path / "saved", padding=0)
    again = load_scores(str(tmp_path / "saved"), dtype=torch.float32)
    assert isinstance(again, AttributeModel) and again.units == UNITS and again.comparable and again.members == 1
    (row,) = pack(EXAMPLES, 100)
    assert again.scores(row).tolist() == model.scores(row).tolist()
    assert again.mixture._replace(gate=model.mixture.gate) == model.mixture
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    assert list(theirs.config.id2label.values()) == ["attribute_helpful", "attribute_clear", "attribute_long"]
    with torch.no_grad():
        raw = theirs(input_ids=torch.tensor([[5, 9, 3, 4, 8, 1]])).logits[0]
    assert model.read(row).attributes_EK[0].tolist() == pytest.approx(raw.tolist(), rel=1e-4)
    more = load_attributes(str(tmp_path / "saved"), UNITS.names, [1.0] * 3, dtype=torch.float32)
    assert torch.equal(more.body.network.score.weight, model.body.network.score.weight)  # it goes on learning


def test_drawing_a_gate_leaves_other_draws_as_they_are():
    body = tiny_reward_model(members=3).body
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    even(body, [1.0] * 3, width=5, seed=0)
    assert torch.equal(torch.rand(1), expected)


def test_what_counts_for_nothing_is_not_let_through():
    body = tiny_reward_model(members=3).body
    mixture = even(body, [1.0, 0.0, -2.0], width=5, seed=0)
    assert mixture.gate(torch.randn(1, 32)).tolist() == [[0.5, 0.0, 0.5]] and mixture.scale == 2.0
    mixture.gate(torch.randn(4, 32))[:, 0].log().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixture.gate.parameters())


def test_a_bfloat16_model_scores_the_same_when_it_is_loaded(tmp_path: Path):
    folder = str(model_folder(tmp_path / "model"))
    model = load_attributes(folder, UNITS.names, [1.0, 2.0, -0.5], dtype=torch.bfloat16, width=5)
    drawn(model.mixture.gate)
    with torch.no_grad():
        model.body.network.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    model.write(tmp_path / "saved")
    complete(tmp_path / "saved", padding=0)
    (row,) = pack(EXAMPLES, 100)
    assert torch.equal(load_scores(str(tmp_path / "saved"), dtype=torch.bfloat16).scores(row), model.scores(row))


def test_the_gate_begins_from_the_seed_and_is_wide(tmp_path: Path):
    folder = str(model_folder(tmp_path / "model"))
    one, again, other = (
        load_attributes(folder, UNITS.names, [1.0] * 3, dtype=torch.bfloat16, seed=seed).mixture.gate
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.inner.weight, again.inner.weight) and not torch.equal(one.inner.weight, other.inner.weight)
    assert one.inner.weight.dtype == torch.float32


def test_other_heads_and_what_was_lost_are_refused(tmp_path: Path):
    model = load_attributes(str(model_folder(tmp_path / "model")), UNITS.names, [1.0] * 3, dtype=torch.float32)
    model.write(tmp_path / "saved")
    complete(tmp_path / "saved", padding=0)
    load_reward_model(str(tmp_path / "model"), dtype=torch.float32).save(tmp_path / "plain", padding=0)
    two = ("helpful", "kind")
    with pytest.raises(ModelError, match=r"with heads for helpful, clear, long; start from a language model"):
        load_attributes(str(tmp_path / "saved"), two, [1.0] * 2, dtype=torch.float32)
    with pytest.raises(ModelError, match="with other heads; start from a language model"):
        load_attributes(str(tmp_path / "plain"), two, [1.0] * 2, dtype=torch.float32)
    with pytest.raises(ModelError, match="it scores as a folder with its gate"):
        load_reward_model(str(tmp_path / "saved"), dtype=torch.float32)
    with pytest.raises(ModelError, match="no reward model"):
        load_scores(str(tmp_path / "model"), dtype=torch.float32)
    model.mixture = model.mixture._replace(finished=False)
    model.write(tmp_path / "unfinished")
    complete(tmp_path / "unfinished", padding=0)
    with pytest.raises(ModelError, match="before its gate was trained; continue with"):
        load_scores(str(tmp_path / "unfinished"), dtype=torch.float32)
    gate = tmp_path / "saved" / "gate.safetensors"
    assert set(load_file(gate)) == {"inner.weight", "inner.bias", "outer.weight", "outer.bias"}
    gate.rename(tmp_path / "plain" / "gate.safetensors")
    with pytest.raises(ModelError, match="with its gate"):
        load_scores(str(tmp_path / "saved"), dtype=torch.float32)
    with pytest.raises(ModelError, match="has a gate without its configuration"):
        load_scores(str(tmp_path / "plain"), dtype=torch.float32)


def test_the_seed_decides_a_fresh_adapter(tmp_path: Path):
    pytest.importorskip("peft")
    folder = str(model_folder(tmp_path / "model"))
    one, same, other = (
        dict(load_attributes(folder, ["a"], [1.0], dtype=torch.float32, adapter=Lora(4), seed=seed).trainable())
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "lora_A" in name)
