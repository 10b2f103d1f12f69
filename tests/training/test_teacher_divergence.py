"""What gkd learns from: a teacher's whole distribution behind what this teacher sees, token by token."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.algorithms.gkd import GKD
from posttrain.models.reference import Reference
from posttrain.training.learner import POLICY, TEACHER
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, context_of, policy_batch, teacher_logprobs
from posttrain.training.teacher import Teachers
from posttrain.types import Message, Score, StopReason, Task, Trajectory, Turn
from tests.groups import group_of
from tests.tiny import plain_logits, tiny_llama

CHAT: Any = SimpleNamespace(prompt_ids=lambda messages: [2 + ord(c) % 30 for m in messages for c in m.content])
MORE = "{prompt} {answer}"


def said(task: Task, *tokens: int, text: str = "", temperature: float = 0.0) -> Trajectory:
    shown = tuple(CHAT.prompt_ids(task.prompt))
    logprobs = (-1.0,) * len(tokens)
    return Trajectory((Turn(shown, tokens, logprobs, StopReason.STOP, text, temperature=temperature),))


def task_of(prompt: str, **columns: Any) -> Task:
    return Task((Message("user", prompt),), answer=columns.pop("answer", "yes"), metadata=columns)


FIRST, SECOND = task_of("ab", teacher="one"), task_of("cde", teacher="two", answer="no")
THIRD = task_of("f", teacher="one")
GROUPS = [
    group_of([said(FIRST, 3, 4), said(FIRST, 5, 6, 7)], [1.0, 0.0], task=FIRST),
    group_of([said(SECOND, 8), said(SECOND, 9, 10, temperature=1.5)], [0.5, 0.5], task=SECOND),
]


def learner_with(microbatch_tokens: int = 64, **teachers: Any) -> tuple[Any, LocalLearner[Any]]:
    model = tiny_llama(dtype=torch.float64)
    optimizer = MasterAdamW(model.trainable())
    held = {name.replace("_", " "): each for name, each in teachers.items()}
    return model, LocalLearner(model, optimizer, microbatch_tokens=microbatch_tokens, references=held)


def batch_of(learner: Any, algorithm: GKD, teachers: Teachers, groups: Any = GROUPS, temperature: float = 0.8) -> Any:
    context = context_of(learner, temperature=temperature, teachers=teachers)
    return policy_batch(groups, algorithm, context=context)[0], PolicyLoss(algorithm, temperature)


def distributions(model: Any, prompt: list[int], tokens: tuple[int, ...], temperature: float) -> list[list[float]]:
    logits = plain_logits(model, [*prompt, *tokens])[len(prompt) - 1 : -1]
    return (logits / temperature).softmax(-1).tolist()


class ByLength(GKD):
    """Weighs a token by the length of its row, so that tokens cannot change places."""

    def reduce(self, values_N, length_N, counts):
        return (values_N * length_N).sum()


def jsd(mine: list[float], its: list[float], beta: float, top_k: int) -> float:
    if top_k:
        kept = sorted(range(len(its)), key=lambda v: -its[v])[:top_k]
        mine, its = ([p[v] for v in kept] + [1 - sum(p[v] for v in kept)] for p in (mine, its))
    mixed = [beta * t + (1 - beta) * s for s, t in zip(mine, its, strict=True)]
    ends = [sum(p * math.log(p / m) for p, m in zip(each, mixed, strict=True)) for each in (its, mine)]
    return beta * ends[0] + (1 - beta) * ends[1]


@pytest.mark.parametrize("top_k", [0, 4])
@pytest.mark.parametrize("microbatch_tokens", [14, 64])
def test_the_loss_is_the_mean_divergence_from_the_teacher_of_each_row(top_k, microbatch_tokens):
    held = {"teacher one": tiny_llama(1, torch.float64), "teacher two": tiny_llama(2, torch.float64)}
    model, learner = learner_with(
        microbatch_tokens, teacher_one=Reference(held["teacher one"]), teacher_two=Reference(held["teacher two"])
    )
    teachers = Teachers({"one": "teacher one", "two": "teacher two"}, prompt=MORE, chat=CHAT)
    third = group_of([said(THIRD, 3, 4, 5, 6)], [0.0], task=THIRD)  # teachers take turns
    algorithm = ByLength(beta=0.3, top_k=top_k)
    found = learner.forward(*batch_of(learner, algorithm, teachers, [*GROUPS, third]))
    expected, by_length = [], []
    for group in (*GROUPS, third):
        prompt, answer = group.task.prompt[-1].content, group.task.answer
        own, its = (CHAT.prompt_ids([Message("user", text)]) for text in (prompt, f"{prompt} {answer}"))
        for row in group.rows:
            (turn,) = row.trajectory.turns
            heat, teacher = turn.temperature or 0.8, held[f"teacher {group.task.metadata['teacher']}"]
            pair = (distributions(m, shown, turn.token_ids, heat) for m, shown in ((model, own), (teacher, its)))
            apart = [jsd(p, q, 0.3, top_k) for p, q in zip(*pair, strict=True)]
            expected += apart
            by_length += [len(turn.token_ids) * each for each in apart]
    assert len(expected) == 12
    assert found["loss"] == pytest.approx(sum(by_length), rel=1e-7)
    assert found["divergence"] == pytest.approx(sum(expected) / 12, rel=1e-7)


def test_a_policy_that_teaches_itself_has_the_gradient_of_a_frozen_one():
    gradients = []
    for live in (True, False):
        model, learner = learner_with(teacher=Reference(copy.deepcopy(tiny_llama(dtype=torch.float64))))
        teachers = Teachers({"": POLICY if live else TEACHER}, prompt=MORE, chat=CHAT)
        learner.forward_backward(*batch_of(learner, GKD(beta=1.0), teachers))
        learner.optim_step({POLICY: 1e-3})
        gradients.append(torch.cat([p.detach().flatten() for _, p in model.trainable()]))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    assert not torch.equal(
        gradients[0], torch.cat([p.flatten() for _, p in tiny_llama(dtype=torch.float64).trainable()])
    )


def test_updates_come_near_the_teacher():
    _, learner = learner_with(teacher=Reference(tiny_llama(1, torch.float64)))
    batch, loss = batch_of(learner, GKD(), Teachers({"": TEACHER}))
    first = learner.forward(batch, loss)["loss"]
    for _ in range(10):
        learner.forward_backward(batch, loss)
        learner.optim_step({POLICY: 1e-2})
    assert learner.forward(batch, loss)["loss"] < 0.5 * first


def prompts(teachers: Teachers, group: Any) -> list[tuple[int, ...]]:
    """What a teacher is shown before each row."""
    _, learner = learner_with()
    context = context_of(learner, teachers=teachers)
    assert context.taught is not None
    return [example.prefix for _, example in context.taught([group])]


def ids(text: str) -> tuple[int, ...]:
    return tuple(CHAT.prompt_ids([Message("user", text)]))


def test_a_teacher_is_shown_a_better_completion_of_the_group_and_else_what_the_policy_saw():
    told = [{"code": Score(value, explanation=why)} for value, why in ((0.0, "line 1"), (1.0, ""), (0.5, "slow"))]
    rows = [said(FIRST, 3, text="bad"), said(FIRST, 4, text="good"), said(FIRST, 5, text="fair")]
    group = group_of(rows, [0.0, 1.0, 0.5], task=FIRST, scores=told)
    teachers = Teachers({"": POLICY}, prompt="{prompt}: {better}", chat=CHAT)
    assert prompts(teachers, group) == [ids("ab: good"), ids("ab"), ids("ab: good")]
    teachers = Teachers({"": POLICY}, prompt="{prompt}: {feedback}", chat=CHAT)
    assert prompts(teachers, group) == [ids("ab: line 1"), ids("ab"), ids("ab: slow")]
    short = Teachers({"": POLICY}, prompt="{prompt}: {feedback}", chat=CHAT, most=len(ids("ab: slow")) + 1)
    assert prompts(short, group) == [ids("ab"), ids("ab"), ids("ab: slow")]  # with what was sampled it must fit
    column = task_of("ab", feedback="ours")
    group = group_of([said(column, 3)], [0.0], task=column)
    assert prompts(teachers, group) == [ids("ab: ours")]


def test_seats_are_not_shown_each_other_s_completions():
    rows = [said(FIRST, 3, text="black"), said(FIRST, 4, text="white")]
    group = group_of(rows, [0.0, 1.0], task=FIRST, seats=["black", "white"], episodes=[0, 0])
    assert prompts(Teachers({"": POLICY}, prompt="{prompt}: {better}", chat=CHAT), group) == [ids("ab"), ids("ab")]


def test_a_row_that_sees_no_more_learns_nothing_from_itself():
    rows = [said(FIRST, 3, text="good"), said(FIRST, 4, 5, text="bad")]
    groups = [group_of(rows, [1.0, 0.0], task=FIRST)]
    _, learner = learner_with()
    teachers = Teachers({"": POLICY}, prompt="{prompt}: {better}", chat=CHAT)
    batch, loss = batch_of(learner, GKD(), teachers, groups)
    alone = (
        learner.forward(batch.chosen([0]), loss)["divergence"],
        learner.forward(batch.chosen([1]), loss)["divergence"],
    )
    assert alone[0] == pytest.approx(0.0, abs=1e-12) and alone[1] > 1e-3
    column = teacher_logprobs(groups, learner, teachers)
    assert len(column[0]) == 1 and len(column[1]) == 2
