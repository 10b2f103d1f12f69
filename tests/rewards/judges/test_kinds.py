"""Kinds of judges: what each asks, and what its verdicts make of it, by hand."""

import asyncio
import math
import re
from dataclasses import replace

import pytest

from posttrain.errors import UserError
from posttrain.rewards import JudgePrompt, Weighted, parse_rewards, read_prompt
from posttrain.rewards.judges.kinds import score_in
from posttrain.rewards.reward import score_all
from posttrain.types import EpisodeGroup, StopReason, Task
from tests.rewards.episodes import episode
from tests.rewards.judges.test_pointwise import Says, judge

PAIR = JudgePrompt("kind: pairwise\n---\n{answer_a}|{answer_b}")


def group(*texts, **columns):
    task = Task(episode("").task.prompt, metadata=columns, id="t")
    said = [episode(text) for text in texts]
    return EpisodeGroup(task, tuple(type(one)(task, (*task.prompt, one.messages[-1])) for one in said))


def scored(reward, *texts, **columns):
    (found,) = asyncio.run(score_all(reward, [group(*texts, **columns)], timeout_s=10))
    return found


def longer(asked: str, seed: int) -> str:
    a, b = asked.split("|")
    return f"Well.\n**Winner:** {'A' if len(a) > len(b) else 'B' if len(b) > len(a) else 'tie'}."


def test_each_pair_is_asked_about_in_both_orders_and_an_answer_earns_the_share_that_it_wins_against():
    model = Says(longer)
    found = scored(judge(model, prompt=PAIR), "aaa", "ab", "ba", "a")
    assert [score.value for score in found] == [1.0, 0.5, 0.5, 0.0]
    assert len(model.asked) == 12 and len({seed for _, _, seed in model.asked}) == 12
    assert {asked for asked, *_ in model.asked} >= {"aaa|a", "a|aaa"}
    assert [score.metrics for score in found] == [{"swapped": 0.0, "first": 0.5}] * 4


def test_verdicts_that_change_with_the_positions_are_a_tie_and_are_counted():
    found = scored(judge("Winner: A", prompt=PAIR), "x", "y")
    assert [(score.value, score.metrics["swapped"]) for score in found] == [(0.5, 1.0)] * 2

    def partly(asked, seed):  # x beats y in both orders, and against z the first wins
        return "Winner: A" if "z" in asked or asked.startswith("x") else "Winner: B"

    found = scored(judge(partly, prompt=PAIR), "x", "y", "z")
    assert [score.value for score in found] == [0.75, 0.25, 0.5]
    assert [score.metrics["swapped"] for score in found] == [0.5, 0.5, 1.0]
    half = scored(judge(lambda asked, seed: "Winner: tie" if asked[0] == "x" else "Winner: A", prompt=PAIR), "x", "y")
    assert [(score.value, score.metrics["swapped"]) for score in half] == [(0.5, 1.0)] * 2


def test_a_pair_without_a_verdict_is_left_out_and_an_answer_without_any_has_no_score():
    def silent(asked, seed):
        return "Hm." if "z" in asked else longer(asked, seed)

    found = scored(judge(silent, prompt=PAIR), "xx", "y", "z")
    assert [score.applicable for score in found] == [True, True, False] and [s.value for s in found[:2]] == [1.0, 0.0]
    assert "none of 3 verdicts ends with a line 'Winner: A'" in found[2].explanation


def test_a_judge_that_compares_needs_a_group_and_scores_compare():
    reward = judge(longer, prompt=PAIR)
    with pytest.raises(UserError, match="compares 2 or more completions"):
        scored(reward, "alone")
    assert Weighted(((reward, 1.0),)).compares and not Weighted(((judge("Score: 1"), 1.0),)).compares
    with pytest.raises(UserError, match="compares 2 or more answers"):
        asyncio.run(reward(episode("a")))
    assert asyncio.run(judge("Score: 7")(episode("a"))).value == 0.7


def test_listwise_scores_go_back_to_the_answers_from_their_random_order():
    prompt = JudgePrompt("kind: listwise\n---\n{answers}\n{scale 0 to 10}")

    def lengths(asked, seed):
        found = re.findall(r"answer [0-9]]\n(a*)", asked)
        return f"Scores: {', '.join(str(len(text)) for text in found)}"

    texts = ["a" * n for n in (5, 1, 9, 3)]
    model = Says(lengths)
    assert [score.value for score in scored(judge(model, prompt=prompt), *texts)] == [0.5, 0.1, 0.9, 0.3]
    assert len(model.asked) == 1 and "answer 1]\naaaaa\n" not in model.asked[0][0]
    for wrong in ("Scores: 1, 2, 3", "Scores: 1, 2, 3, 11", "1, 2, 3, 4", "Scores: 1 2 3 4"):
        assert not any(score.applicable for score in scored(judge(wrong, prompt=prompt), *texts))


RUBRIC = [
    {"criterion": "short", "weight": 3},
    {"criterion": "polite", "weight": 1},
    {"criterion": "lies", "weight": -2},
]


def test_a_rubric_of_the_row_is_asked_criterion_by_criterion():
    prompt = JudgePrompt("kind: rubric\n---\n{answer}: {criterion}?")
    met = {"a": "short", "b": "short polite", "c": "polite lies", "d": ""}
    reward = judge(lambda asked, seed: f"Met: {'yes' if asked[3:-1] in met[asked[0]] else 'no'}", prompt=prompt)
    assert [score.value for score in scored(reward, *"abcd", rubric=RUBRIC)] == [0.75, 1.0, 0.0, 0.0]
    assert scored(reward, "a", rubric=["short", "polite"])[0].value == 0.5
    silent = judge(lambda asked, seed: "Met: yes" if "short" in asked else "Maybe", prompt=prompt)
    assert not scored(silent, "a", rubric=RUBRIC)[0].applicable
    assert [score.parsed for score in scored(reward, *"ac", rubric=RUBRIC)] == ["1 0 0", "0 1 1"]
    own = JudgePrompt(prompt.with_rubric([("short", 1.0), ("polite", 4.0)]))  # in place of the row's
    fitted = scored(replace(reward, prompt=own), *"abcd", rubric=RUBRIC)
    assert [score.value for score in fitted] == [0.2, 1.0, 0.8, 0.0]


@pytest.mark.parametrize(
    ("rubric", "why"),
    [
        (None, "it has no column 'rubric', a list of criteria; add it, or a line rubric: [...]"),
        ([], "no criterion with a weight above 0"),
        ("be short", "its column 'rubric' must be a list of criteria; got 'be short'"),
        (
            [{"criterion": "x", "wieght": -1}],
            "key of a criterion of the column 'rubric': 'wieght'; did you mean",
        ),
        ([{"criterion": "x", "weight": -1}], "no criterion with a weight above 0"),
        ([{"criterion": ""}], "a criterion of the column 'rubric' is {'criterion': ''}"),
        ([{"criterion": "x", "weight": "much"}], "a criterion of the column 'rubric' is"),
        ([3], "a criterion of the column 'rubric' is 3; expected text, or"),
    ],
)
def test_a_row_without_a_usable_rubric_is_told_before_anything_is_asked(rubric, why):
    reward = judge("Met: yes", prompt=read_prompt("rubric"))
    (told,) = asyncio.run(reward.unreadable([Task((), metadata={"rubric": rubric})]))
    assert why in told
    whole = judge("Score: 1", prompt=JudgePrompt("{answer} {rubric} {scale 0 to 1}"))
    assert asyncio.run(whole.unreadable([Task((), metadata={"rubric": RUBRIC})])) == [""]


def test_a_whole_rubric_may_stand_in_a_pointwise_prompt():
    model = Says(lambda asked, seed: "Score: 1")
    scored(judge(model, prompt=JudgePrompt("{rubric}|{answer} {scale 0 to 1}")), "a", rubric=RUBRIC[:2])
    assert model.asked[0][0] == "- (weight 3) short\n- (weight 1) polite|a 0 to 1"


def test_votes_are_sampled_with_seeds_of_their_own_and_averaged():
    model = Says(lambda asked, seed: f"Score: {seed % 5}")
    (score,) = scored(judge(model, prompt=JudgePrompt("votes: 4\n---\n{answer} {scale 0 to 4}")), "a")
    seeds = {seed for _, _, seed in model.asked}
    assert len(seeds) == 4 and score.value == pytest.approx(sum(seed % 5 for seed in seeds) / 16)
    assert {sampling.temperature for _, sampling, _ in model.asked} == {1.0}
    some = judge(
        lambda asked, seed: "Score: 4" if seed % 2 else "Hm",
        prompt=JudgePrompt("votes: 9\n---\n{answer} {scale 0 to 4}"),
    )
    assert scored(some, "a")[0].value == 1.0


class Odds(Says):
    """A model whose probabilities of continuations are given; it notes what they continue."""

    def __init__(self, odds, say="Because."):
        super().__init__(lambda asked, seed: say)
        self.odds, self.continued = odds, []

    async def logprobs(self, messages, continuations):
        self.continued.append([message.content for message in messages])
        return [(math.log(self.odds[text]) / 2,) * 2 for text in continuations]


def test_the_expected_grade_is_weighed_by_probabilities():
    prompt = JudgePrompt("kind: expected\n---\n{answer} {scale 1 to 3}")
    (score,) = scored(judge(Odds({"1": 0.1, "2": 0.2, "3": 0.1}), prompt=prompt), "a")
    assert score.value == pytest.approx(0.5)
    (score,) = scored(judge(Odds({"1": 0.05, "2": 0.05, "3": 0.3}), prompt=prompt), "a")
    assert score.value == pytest.approx(((0.05 + 0.1 + 0.9) / 0.4 - 1) / 2)


def test_preferences_by_probabilities_are_the_mean_of_both_orders():
    class ByOrder(Odds):
        async def logprobs(self, messages, continuations):  # x first: p(A) is 0.9, y first: 0.8
            self.odds = {"A": 0.54, "B": 0.06} if messages[0].content.startswith("x") else {"A": 0.4, "B": 0.1}
            return await super().logprobs(messages, continuations)

    prompt = JudgePrompt("kind: pairwise-expected\n---\n{answer_a}|{answer_b}")
    found = scored(judge(ByOrder({}), prompt=prompt), "x", "y")
    assert [score.value for score in found] == pytest.approx([(0.9 + 0.2) / 2, (0.1 + 0.8) / 2])
    assert [score.metrics["swapped"] for score in found] == [1.0, 1.0]  # each order prefers what stands first


def test_a_generative_verifier_scores_by_the_probability_of_yes():
    model = Odds({"Yes": 0.3})
    (score,) = scored(judge(model, prompt=read_prompt("genrm")), "a")
    assert score.value == pytest.approx(0.3) and not model.asked
    assert model.continued[0][0].endswith("Is the answer correct (Yes/No)?\n") and len(model.continued[0]) == 1


def test_with_rationales_it_is_their_mean():
    model = Odds({"Yes": 0.3})
    (score,) = scored(judge(model, prompt=read_prompt("genrm-cot")), "a")
    assert score.value == pytest.approx(0.3) and len(model.asked) == len(model.continued) == 4
    assert model.continued[0][1] == "Because.\nVerification: Is the answer correct (Yes/No)?\n"
    cut = Odds({"Yes": 0.3})
    cut.stop = StopReason.LENGTH
    assert not scored(judge(cut, prompt=read_prompt("genrm-cot")), "a")[0].applicable and not cut.continued


def test_a_rationale_that_goes_on_to_its_own_verdict_ends_before_it():
    ending = "\nVerification: Is the answer correct (Yes/No)?\n"
    model = Odds({"Yes": 0.3}, f"Because.{ending}No")
    scored(judge(model, prompt=read_prompt("genrm-cot")), "a")
    assert [said[1] for said in model.continued] == [f"Because.{ending}"] * 4


def test_a_context_that_is_too_short_for_logprobs_gives_no_score():
    class Full(Odds):
        async def logprobs(self, messages, continuations):
            raise UserError("the context is full")

    (score,) = scored(judge(Full({}), prompt=read_prompt("genrm")), "a")
    assert not score.applicable and score.explanation == "the context is full"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: pairwise\n{answer}", "begins with settings; end them with a line ---"),
        ("kind: pairwize\n---\n{answer}", "unknown kind of judge in mine: 'pairwize'; did you mean 'pairwise'"),
        ("kind: none.py:Kind\n---\n{answer}", "needs the file 'none.py', which does not exist"),
        ("votes: 0\n---\n{answer} {scale 0 to 1}", "the votes of mine must be a whole number of 1 or more; got '0'"),
        ("kind: pairwise\nvote: 3\n---\n{answer}", "unknown setting of mine: 'vote'; did you mean 'votes'"),
        ("kind: pairwise\n---\n{answer_a}", "mine shows no answer to the judge; write {answer_b}"),
        ("rubric: [\n---\n{answer} {scale 0 to 1}", "the rubric of mine must be a list of criteria as JSON: Expecting"),
        ("kind: rubric\nrubric: {}\n---\n{answer}", "JSON: its prompt's 'rubric' has no criterion"),
        (
            'rubric: ["be kind"]\n---\n{answer} {scale 0 to 1}',
            "mine has a rubric and does not show it; write",
        ),
        ("{answer} {scale 0-10}", "such as {scale 0 to 10}; it says {scale 0-10}"),
        ("kind: rubric\n---\n{answer}", "mine shows no criterion to the judge; write {criterion}"),
        (
            "kind: pairwise\n---\n{answer_a} {answer_b} {scale 0 to 1}",
            "is of a kind without a scale, and it says 0 to 1",
        ),
        ("kind: expected\n---\n{answer} {scale 0 to 10}", "mine: grades of one digit are needed"),
    ],
)
def test_a_prompt_whose_settings_cannot_work_is_refused(text, says):
    with pytest.raises(UserError) as caught:
        JudgePrompt(text, "mine")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_kind_that_reads_logprobs_refuses_a_model_that_gives_none():
    with pytest.raises(UserError, match="reads logprobs of grades, which models behind an API do not give"):
        judge("Yes", prompt=read_prompt("genrm"))


def test_a_person_adds_a_kind_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from posttrain.rewards.judges.kinds import Kind\n"
        "class Thumb(Kind):\n"
        "    scaled, line = False, 'up or down'\n"
        "    def read(self, verdict, scale, question):\n"
        "        return {'up': 1.0, 'down': 0.0}.get(verdict)\n"
    )
    prompt = JudgePrompt(f"kind: {tmp_path / 'mine.py'}:Thumb\n---\n{{answer}}")
    assert [
        s.value for s in scored(judge(lambda asked, seed: "up" if "a" in asked else "down", prompt=prompt), "a", "b")
    ]
    assert scored(judge("so so", prompt=prompt), "a")[0].explanation.startswith(
        "none of 3 verdicts ends with a line 'up"
    )


def test_judges_agree_as_one_reward():
    judges = {name: judge(f"Score: {score}", name=name) for name, score in (("a", 2), ("b", 6), ("c", 10))}
    values = {
        "consensus": 0.6,
        "consensus?use=minimum": 0.2,
        "consensus?use=majority": 1.0,
        "consensus?of=a,b": 0.4,
        "consensus?of=a,c&accuracy=0.75,0.9": 0.2 / 3 + 2 / 3,  # log odds of 3 to 1 and 9 to 1
    }
    for typed, value in values.items():
        reward = parse_rewards(typed, judges=judges)
        ((score, *_),) = asyncio.run(reward.score_parts([group("x")]))
        assert score["consensus"].value == pytest.approx(value), typed
    silent = {**judges, "d": judge("Hm.", name="d")}
    ((score,),) = asyncio.run(parse_rewards("consensus", judges=silent).score_parts([group("x")]))
    assert not score["consensus"].applicable


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("consensus?of=a", "needs two or more judges"),
        ("consensus?of=a,a", "needs two or more judges"),
        ("consensus?of=a,z", "unknown judge of the reward 'consensus': 'z'"),
        ("consensus?use=median", "expected one of mean, majority, minimum"),
        ("consensus?accuracy=0.8", "got 1 for 2 judges"),
        ("consensus?use=minimum&accuracy=0.8,0.7", "the minimum has no weights"),
        ("consensus?accuracy=0.8,0.5", "above 0.5, a coin's, and below 1; got 0.5"),
    ],
)
def test_a_consensus_that_cannot_be_is_refused(typed, says):
    with pytest.raises(UserError) as caught:
        parse_rewards(typed, judges={name: judge("Score: 1", name=name) for name in "ab"})
    assert says in str(caught.value)


def test_score_in_is_as_it_was():
    assert score_in("x\n**Score: 8/10**", (0, 10)) == 8 and score_in("Score: 8/9", (0, 10)) is None
