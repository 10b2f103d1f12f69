from typing import Any

from posttrain.runs.run import samples_of
from posttrain.types import Group, Message, Score, StopReason, Task, Trajectory, Turn
from tests.groups import group_of, with_rows


def group(name: str, answer: object, texts: list[str], **columns: Any) -> Group:
    task = Task((Message("system", "Be brief."), Message("user", name)), answer)
    trajectories = [Trajectory((Turn((1,), (2,), (-0.1,), StopReason.LENGTH, text),)) for text in texts]
    scores = [{"exact": Score(float(i)), "tags": Score(0.5)} for i in range(len(texts))]
    return group_of(trajectories, [i + 0.05 for i in range(len(texts))], task=task, scores=scores, **columns)


def test_each_completion_is_a_sample_with_its_own_rewards() -> None:
    first, second, third = samples_of([group("2+2?", 4, ["5", "4"]), group("why?", None, ["so"])])
    assert (first.prompt, first.completion, first.answer) == ("system: Be brief.\nuser: 2+2?", "5", "4")
    assert (first.rewards, first.reward, first.stop_reason) == ({"exact": 0.0, "tags": 0.5}, 0.05, "length")
    assert (second.completion, second.rewards["exact"], second.reward) == ("4", 1.0, 1.05)
    assert (third.completion, third.answer) == ("so", "")


def test_only_the_first_of_each_group_are_taken() -> None:
    groups = [group("a", 1, ["x", "y", "z"]), group("b", 2, ["u", "v", "w"])]
    assert [sample.completion for sample in samples_of(groups, per_group=2)] == ["x", "y", "u", "v"]


def test_of_several_seats_all_rows_of_an_episode_are_taken_and_named() -> None:
    both = group("a", 1, ["x", "y", "z", "u"], seats=["one", "two"] * 2, episodes=[0, 0, 1, 1])
    found = [(sample.completion, sample.seat) for sample in samples_of([both], per_group=1)]
    assert found == [("x", "one"), ("y", "two")]
    assert len(list(samples_of([both]))) == 4
    alone = group("a", 1, ["x", "y", "z", "u"], seats=["one"] * 4)
    assert [(sample.completion, sample.seat) for sample in samples_of([alone], per_group=1)] == [("x", "")]


def test_a_message_with_inserted_text_is_shown_whole() -> None:
    turns = (Turn((1,), (2,), (-0.1,), StopReason.STOP, "<s>1</s>"), Turn((3,), (4,), (-0.1,), StopReason.STOP, "so 2"))
    task = Task((Message("user", "1+1?"),), 2)
    said = (*task.prompt, Message("assistant", "<s>1</s> found 2, so 2"))
    played = with_rows(group_of([Trajectory(turns)], [1.0], task=task), conversation=[said])
    (sample,) = samples_of([played])
    assert sample.completion == "<s>1</s> found 2, so 2"
