"""A reward model's update against the same in plain floats, however the batch is cut."""

import math

import pytest
import torch

from posttrain.data.packing import Example, Ranked, Stepwise
from posttrain.engine.scorer import scores_of
from posttrain.models.heads import RewardModel, StepModel, with_length_head
from posttrain.models.lora import Lora, add_adapter
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.reward import RewardLoss, StepLoss, reward_gradient, sequences_of, step_batch
from tests.models.test_heads import plain_scores, tiny_reward_model
from tests.references import process
from tests.references import rewards as reference
from tests.training.steps import learner_of, reward_step


def responses(prompt: tuple[int, ...], *said: tuple[int, ...]) -> tuple[Example, ...]:
    return tuple(Example(prompt, tokens, (True,) * len(tokens)) for tokens in said)


UNITS = [
    Ranked(responses((5, 9, 3), (4, 8, 1), (7, 1), (6, 6, 6, 1)), ((0, 1, 2.0), (0, 2, 0.5), (2, 1, 1.0)), (2.0, 0.0)),
    Ranked(responses((2, 2), (11, 1), (12, 13, 1)), ((1, 0, 1.0),), (1.0, 3.0)),
    Ranked(responses((2, 2), (15, 1), (16, 17, 18, 19, 1)), ((0, 1, 3.0),)),
]
CUTS = pytest.mark.parametrize("microbatch_tokens", [12, 100])


def by_hand(model: RewardModel, example: Example) -> list[float]:
    return plain_scores(model, [*example.prefix, *example.continuation])


@CUTS
@pytest.mark.parametrize("members", [1, 2])
def test_the_loss_of_rankings_by_hand(members, microbatch_tokens):
    model = tiny_reward_model(dtype=torch.float64, members=members)
    units = [unit._replace(bag=unit.bag[:members]) for unit in UNITS]
    loss = RewardLoss(label_smoothing=0.1, margin=0.3, center_rewards=0.02)
    plain = [
        ([(*(by_hand(model, unit.examples[i]) for i in pair[:2]), pair[2]) for pair in unit.pairs], unit.bag)
        for unit in units
    ]
    optimizer = MasterAdamW(model.trainable())
    found = reward_step(optimizer, model, units, loss, lr=0.0, microbatch_tokens=microbatch_tokens)
    expected = reference.ranking_loss(plain, smoothing=0.1, margin=0.3, centring=0.02)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    margins = [sum(c) / members - sum(r) / members for pairs, _ in plain for c, r, _ in pairs]
    assert found["margin"] == pytest.approx(sum(margins) / 5, rel=1e-5)
    assert found["accuracy"] == sum(margin > 0 for margin in margins) / 5
    chosen = [sum(c) / members for pairs, _ in plain for c, _, _ in pairs]
    assert found["score/chosen"] == pytest.approx(sum(chosen) / 5, rel=1e-5)
    assert found["score/rejected"] == pytest.approx((sum(chosen) - sum(margins)) / 5, rel=1e-5)


def test_scores_that_are_all_equal_are_right_by_half():
    model = tiny_reward_model(dtype=torch.float64)
    with torch.no_grad():
        model.head.zero_()
    units = [unit._replace(bag=()) for unit in UNITS]
    found = reward_step(MasterAdamW(model.trainable()), model, units, RewardLoss(), lr=0.0, microbatch_tokens=100)
    assert (found["margin"], found["accuracy"]) == (0.0, 0.5)


PAIRS = [unit._replace(pairs=unit.pairs[:1], bag=(), examples=unit.examples[:2]) for unit in UNITS]
ODIN = RewardLoss(length=0.7)


def apart_from_length(dtype: torch.dtype = torch.float64) -> RewardModel:
    return with_length_head(tiny_reward_model(dtype=dtype), seed=1)


@CUTS
def test_the_loss_apart_from_length_by_hand(microbatch_tokens):
    model = apart_from_length()
    head = model.length_head.detach()[0]

    def both(example: Example) -> tuple[float, float]:
        from posttrain.data.packing import pack

        (row,) = pack([example], 100)
        return by_hand(model, example)[0], (model.body.states(row)[-1].detach() @ head).item()

    pairs = [tuple(both(unit.examples[i]) for i in unit.pairs[0][:2]) for unit in PAIRS]
    tokens = [len(unit.examples[i].continuation) for unit in PAIRS for i in unit.pairs[0][:2]]
    rows = model.head.detach()[0].tolist(), head.tolist()
    found = reward_step(MasterAdamW(model.trainable()), model, PAIRS, ODIN, lr=0.0, microbatch_tokens=microbatch_tokens)
    assert found["loss"] == pytest.approx(reference.odin(pairs, tokens, rows, 0.7), rel=1e-5)
    quality = [q for pair in pairs for q, _ in pair]
    length = [n for pair in pairs for _, n in pair]
    apart = abs(reference.pearson(quality, tokens)) - reference.pearson(length, tokens)
    assert found["length/apart"] == pytest.approx(apart, rel=1e-5)
    assert found["margin"] == pytest.approx(sum(c[0] - r[0] for c, r in pairs) / 3, rel=1e-5)  # of quality alone


def gradients(model: RewardModel, units, loss: RewardLoss, microbatch_tokens: int) -> dict[str, torch.Tensor]:
    """Of a first step whose Adam does nothing but remember them, ten times as small."""
    optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
    reward_step(optimizer, model, units, loss, lr=0.0, microbatch_tokens=microbatch_tokens)
    return {name: 10 * optimizer.adam.state[m]["exp_avg"] for name, m in optimizer.named_masters().items()}


@pytest.mark.parametrize("length", [0.0, 0.7])
def test_gradients_do_not_depend_on_the_cut(length):
    make = apart_from_length if length else lambda: tiny_reward_model(dtype=torch.float64)
    units = PAIRS if length else [unit._replace(bag=()) for unit in UNITS]
    loss = RewardLoss(0.1, 0.3, 0.02, length)
    whole, cut = (gradients(make(), units, loss, tokens) for tokens in (100, 12))
    for name, gradient in whole.items():
        # transformers takes its norms in float32, which is what limits this
        assert (cut[name] - gradient).norm() < 1e-6 * gradient.norm(), name


@pytest.mark.parametrize("length", [0.0, 0.7])
def test_the_gradient_of_the_head_is_the_slope_of_the_loss(length):
    make = apart_from_length if length else lambda: tiny_reward_model(dtype=torch.float64, members=2)
    units, loss = (PAIRS if length else UNITS), RewardLoss(0.1, 0.3, 0.02, length)
    names = ("score.weight", "length_head") if length else ("score.weight",)
    found = gradients(make(), units, loss, 12)
    for name in names:
        for row, column in ((0, 3), (0, 20)) if length else ((0, 3), (1, 20)):
            ends = []
            for sign in (1, -1):
                model = make()
                with torch.no_grad():
                    dict(model.trainable())[name][row, column] += sign * 1e-4
                stepped = reward_step(MasterAdamW(model.trainable()), model, units, loss, lr=0.0, microbatch_tokens=100)
                ends.append(stepped["loss"])
            assert found[name][row, column].item() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-3), name


def test_both_passes_apart_from_length_drop_the_same_inputs_of_an_adapter():
    pytest.importorskip("peft")

    def found(slope: float) -> tuple[float, float]:
        plain = tiny_reward_model(dtype=torch.float64)
        body = add_adapter(plain.body, Lora(2, dropout=0.5), whole="score")
        model = with_length_head(RewardModel(body), seed=1)
        with torch.no_grad():
            for name, p in model.trainable():
                p += 0.3 * ("lora" in name)
            model.length_head[0, 3] += slope
        optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
        loss = reward_gradient(learner_of(model, optimizer, microbatch_tokens=12), PAIRS, ODIN, seed=5)["loss"]
        return loss, optimizer.named_masters()["length_head"].grad[0, 3].item()

    (less, _), (_, gradient), (more, _) = (found(slope) for slope in (-1e-4, 0.0, 1e-4))
    assert gradient == pytest.approx((more - less) / 2e-4, rel=1e-3)


def test_what_is_learned_apart_from_length_does_not_follow_it():
    """In all pairs the longer response is chosen: one head alone learns that, and of two the one that is left out."""
    long, short = (4, 8, 6, 9, 1), (4, 1)
    units = [Ranked(responses((5, i), (i, *long), (i, *short)), ((0, 1, 1.0),)) for i in range(2, 10)]
    margins = []
    for weight in (0.0, 2.0):
        model = apart_from_length(torch.float32) if weight else tiny_reward_model()
        optimizer = MasterAdamW(model.trainable())
        for _ in range(40):
            found = reward_step(optimizer, model, units, RewardLoss(length=weight), lr=3e-3, microbatch_tokens=200)
        margins.append(found["margin"])
        if weight:
            assert found["length/apart"] < -0.8
    assert margins[1] < 0.3 * margins[0]


def test_a_reward_model_learns_rankings_and_scores_each_response():
    model = tiny_reward_model(members=2)
    optimizer = MasterAdamW(model.trainable())
    units = [unit._replace(bag=()) for unit in UNITS]
    for _ in range(40):
        reward_step(optimizer, model, units, RewardLoss(), lr=3e-3, microbatch_tokens=100)
    examples = sequences_of(units)
    scores = scores_of(model, examples, microbatch_tokens=12)
    assert scores[3] == pytest.approx(by_hand(model, examples[3]), rel=1e-4)
    assert [len(one) for one in scores] == [2] * 7
    for head in range(2):
        s = [one[head] for one in scores]
        assert s[0] > s[2] > s[1] and s[4] > s[3] and s[5] > s[6]


def test_a_prompt_with_many_pairs_weighs_as_much_as_one_with_one():
    model = tiny_reward_model(dtype=torch.float64)
    alone = [
        reward_step(MasterAdamW(model.trainable()), model, [unit], RewardLoss(), lr=0.0, microbatch_tokens=100)["loss"]
        for unit in (u._replace(bag=()) for u in UNITS)
    ]
    units = [u._replace(bag=()) for u in UNITS]
    found = reward_step(MasterAdamW(model.trainable()), model, units, RewardLoss(), lr=0.0, microbatch_tokens=100)
    assert found["loss"] == pytest.approx(sum(alone) / 3, rel=1e-9)


def test_scoring_keeps_nothing_for_a_backward_pass():
    model = tiny_reward_model()
    seen = []
    right = model.body.states
    model.body.states = lambda row: seen.append(torch.is_grad_enabled()) or right(row)
    scores_of(model, sequences_of(UNITS), microbatch_tokens=100)
    assert seen == [False]


LABELLED = [
    Stepwise(Example((5, 9, 3), (4, 8, 6, 7, 1), (False, True, False, True, True)), (True, True, False)),
    Stepwise(Example((5, 9, 3), (6, 6, 1), (False, False, True)), (False,)),
    Stepwise(Example((2, 2), (15, 16, 1), (False, True, False)), (True,)),
]


@CUTS
def test_the_loss_of_steps_by_hand_however_the_batch_is_cut(microbatch_tokens):
    plain = tiny_reward_model(dtype=torch.float64)
    model = StepModel(plain.body, plain.zeros)
    costs, right = [], []
    for unit in LABELLED:
        ends = [place for place, learned in enumerate(unit.example.learned) if learned]
        for end, label in zip(ends, unit.right, strict=True):
            (logit,) = plain_scores(plain, [*unit.example.prefix, *unit.example.continuation[:end]])
            costs.append(process.correctness(logit, label))
            right.append((logit > 0) == label)
    learner = learner_of(model, microbatch_tokens=microbatch_tokens)
    found = learner.forward_backward(step_batch(LABELLED), StepLoss())
    assert found == pytest.approx({"loss": sum(costs) / 5, "accuracy": sum(right) / 5}, rel=1e-5)
    scores = learner.scores([unit.example for unit in LABELLED])
    own = [[score for score in of_unit if not math.isnan(score)] for of_unit in scores]
    assert [len(of_unit) for of_unit in own] == [3, 1, 1]
