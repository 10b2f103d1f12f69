"""Layouts of public preference datasets: their columns, and what they mean.

A row may hold several preferences, or none: scored responses make a pair of every two whose scores
differ, and a derivation with rated steps makes one for each right step with a wrong alternative.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, groupby
from typing import NamedTuple

from posttrain.data.fields import as_answer, as_list, as_mapping, as_number, as_text
from posttrain.data.meaning import MEANT, is_empty
from posttrain.data.records import Record
from posttrain.types import Message, Preference


class Layout(NamedTuple):
    """How one data set is recognised by its columns, and read."""

    name: str
    fits: Callable[[Record], bool]
    read: Callable[[Record], list[Preference]]


def layout_of(row: Record) -> Layout | None:
    """The public layout that a row has; None for posttrain's own, or one that is not known."""
    return next((layout for layout in LAYOUTS if layout.fits(row)), None)


def gathered(rows: Sequence[Record]) -> list[Record]:
    """HelpSteer2 has a row for each response: those that follow each other and answer the same prompt become one row.

    Other rows stay as they are.
    """
    if not rows or not {"prompt", "response", "helpfulness"} <= rows[0].fields.keys():
        return list(rows)
    found: list[Record] = []
    meant = [name for name in MEANT if any(name in row for row in rows)]  # rows that differ in them are others
    for _, group in groupby(rows, key=lambda row: [row.fields.get(name) for name in ("prompt", *meant)]):
        members = list(group)
        prompt = members[0].text("prompt")
        others = {name: row.fields[name] for row in members for name in row.fields if not is_empty(row.fields[name])}
        fields = {
            "prompt": turns_of(prompt),
            "responses": [row.text("response") for row in members],
            "scores": [as_number(row, row.get("helpfulness"), "helpfulness") for row in members],
        }
        rest = {name: value for name, value in others.items() if name not in ("response", "helpfulness")}
        found.append(Record(rest | fields, members[0].place, members[0].id))
    return found


def turns_of(prompt: str) -> str | list[dict[str, str]]:
    """A prompt of HelpSteer2: text, or a conversation in which `<extra_id_1>` and a name mark the speaker."""
    first, *following = re.split(r"<extra_id_1>(User|Assistant)\n", prompt)
    if not following:
        return prompt
    said = zip(following[::2], following[1::2], strict=True)
    turns = [("user", first), *((speaker.lower(), text) for speaker, text in said)]
    return [{"role": role, "content": text.strip()} for role, text in turns]


def _scored(row: Record) -> list[Preference]:
    """`prompt`, `responses` and their `scores`: the higher, the better."""
    responses, scores = (as_list(row, row.get(name), name) for name in ("responses", "scores"))
    if len(responses) != len(scores):
        raise row.fail(f"{len(responses)} 'responses' need as many 'scores'; got {len(scores)}")
    said = [as_answer(row, response, "responses") for response in responses]
    return _pairs(row, row.prompt("prompt"), said, [as_number(row, score, "scores") for score in scores])


def _ultrafeedback(row: Record) -> list[Preference]:
    """`instruction`, and `completions` by their `fine-grained_score`; their `overall_score` is wrong for some."""
    completions = [as_mapping(row, item, "completions") for item in as_list(row, row.get("completions"), "completions")]
    rated = [one for one in completions if one.get("response") and one.get("fine-grained_score") is not None]
    said = [as_text(row, one.get("response"), "completions response") for one in rated]
    scores = [as_number(row, one.get("fine-grained_score"), "completions fine-grained_score") for one in rated]
    return _pairs(row, row.prompt("instruction"), said, scores)


def _tldr(row: Record) -> list[Preference]:
    """OpenAI's comparisons of summaries, with the prompt of Stiennon et al. 2020 (arXiv 2009.01325), appendix B."""
    info = as_mapping(row, row.get("info"), "info")
    title = f"TITLE: {info['title']}\n\n" if info.get("title") else ""
    if info.get("post"):
        where = f"SUBREDDIT: r/{info['subreddit']}\n\n" if info.get("subreddit") else ""
        prompt = f"{where}{title}POST: {as_text(row, info['post'], 'info post')}\n\nTL;DR:"
    else:  # the news articles of the validation split
        prompt = f"{title}ARTICLE: {as_text(row, info.get('article'), 'info post or article')}\n\nTL;DR:"
    summaries = as_list(row, row.get("summaries"), "summaries")
    texts = [as_text(row, as_mapping(row, one, "summaries").get("text"), "summaries text").strip() for one in summaries]
    choice = row.get("choice")
    if len(texts) != 2 or choice not in (0, 1):
        raise row.fail(f"two 'summaries' and a 'choice' of 0 or 1 make a comparison; got {len(texts)} and {choice!r}")
    choice = int(choice)
    worker = str(row.get("worker") or "")
    return _differing(
        [Preference((Message("user", prompt),), texts[choice], texts[1 - choice], 1.0, worker, row.place)]
    )


class RatedStep(NamedTuple):
    """A step of a derivation: its alternatives with their ratings (1, 0, -1 or None), and the one that was taken."""

    rated: list[tuple[str, int | None]]
    taken: str  # empty where it ends here
    chosen: int | None  # which of the alternatives that is; None for one that a person wrote


def prm800k_problem(row: Record) -> tuple[Message, ...]:
    """The prompt of a row of PRM800K."""
    question = as_mapping(row, row.get("question"), "question")
    return (Message("user", as_text(row, question.get("problem"), "question problem")),)


def prm800k_steps(row: Record) -> Iterator[RatedStep]:
    """The steps of a row of PRM800K, up to one after which a wrong or missing one was taken."""
    steps = as_list(row, as_mapping(row, row.get("label"), "label").get("steps"), "label steps")
    for step in (as_mapping(row, one, "label steps") for one in steps):
        seen = [as_mapping(row, one, "completions") for one in step.get("completions") or ()]
        rated = [(str(one.get("text") or ""), one.get("rating")) for one in seen]
        if wrong := [rating for _, rating in rated if rating not in (-1, 0, 1, None)]:
            raise row.fail(f"the rating of a step must be -1, 0, 1 or null; got {wrong[0]!r}")
        chosen, human = step.get("chosen_completion"), step.get("human_completion")
        taken = human.get("text") if isinstance(human, Mapping) else human
        if isinstance(chosen, int):
            if not 0 <= chosen < len(rated):
                raise row.fail(f"'chosen_completion' is {chosen} of {len(rated)} completions")
            taken = rated[chosen][0] if rated[chosen][1] != -1 else None
        taken = taken if isinstance(taken, str) and taken.strip() else ""
        yield RatedStep(rated, taken, chosen if isinstance(chosen, int) and taken else None)
        if not taken:
            return


def _prm800k(row: Record) -> list[Preference]:
    """A derivation with rated steps: a right step against each of its wrong alternatives."""
    prompt = prm800k_problem(row)
    annotator, time = (str(row.get(name) or "") for name in ("labeler", "timestamp"))
    found: list[Preference] = []
    before = ""
    for step in prm800k_steps(row):
        right, wrong = ([text for text, rating in step.rated if text.strip() and rating == one] for one in (1, -1))
        found += [
            Preference(prompt, good, bad, 1.0, annotator, row.place, time, opening=before, partial=True)
            for good in right
            for bad in wrong
        ]
        before += f"{step.taken}\n"
    return _differing(found)


def _has(*names: str) -> Callable[[Record], bool]:
    return lambda row: all(name in row for name in names)


def is_prm800k(row: Record) -> bool:
    """Others have a `question` and a `label`, too, but as text."""
    return all(isinstance(row.fields.get(name), Mapping) for name in ("question", "label"))


LAYOUTS = (
    Layout("responses with scores", _has("prompt", "responses", "scores"), _scored),
    Layout("UltraFeedback", _has("instruction", "completions"), _ultrafeedback),
    Layout("TL;DR comparisons", _has("info", "summaries", "choice"), _tldr),
    Layout("PRM800K", is_prm800k, _prm800k),
)


def _pairs(row: Record, prompt: tuple[Message, ...], said: Sequence[str], scores: Sequence[float]) -> list[Preference]:
    """Every two responses of different scores, with the difference as strength."""

    def ordered() -> Iterator[Preference]:
        for (one, first), (other, second) in combinations(zip(said, scores, strict=True), 2):
            if first != second:
                chosen, rejected = (one, other) if first > second else (other, one)
                yield Preference(prompt, chosen, rejected, abs(first - second), source=row.place)

    return _differing(list(ordered()))


def _differing(preferences: list[Preference]) -> list[Preference]:
    return [p for p in preferences if p.chosen != p.rejected]
