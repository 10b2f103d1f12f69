"""Search in the manner of Search-R1 (Jin et al. 2025, https://arxiv.org/abs/2503.09516): reason, search, go on, answer.

    posttrain evaluate --environment examples/search.py:Search --model MODEL
    posttrain rl --environment examples/search.py:Search --model MODEL --max-new-tokens 128
    posttrain rl --environment examples/search.py:Search --environment-args "documents=wiki.txt searches=4" \
        --dataset questions.jsonl --model MODEL

The policy writes one message. At `</search>` it stops, what was found is inserted between `<information>` tags, and it
goes on in the same message. Inserted text is context and not trained (the paper's retrieved token masking); the reward
is 1 if what stands between `<answer>` tags is the answer (its exact match). Left out of the paper: its retriever, which
is a dense one over Wikipedia, and the text by which it tells the policy that an action is invalid.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from posttrain.environments import Environment, Seat
from posttrain.types import Message, Outcome, Task

STOPS = ("</search>", "</answer>")
SEARCH, ANSWER = (re.compile(rf"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("search", "answer"))
FIRST = ("Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
LAST = ("Stone", "Rivers", "Marsh", "Field", "Wood", "Lake")
PLACES = ("Oslo", "Lima", "Kyoto", "Cairo", "Quito", "Turin", "Perth", "Delhi")
HOW = (
    "Answer the question. Think first. If you lack a fact, write <search> words </search>; what is found comes between "
    "<information> and </information>. Search as often as you need to. Write the answer as <answer> Oslo </answer>. "
    "Question: {question}"
)


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return re.findall(r"\w+", text.lower())


class Search(Environment):
    """Questions about documents, one a line of the file `documents`; without one, about people who were made up."""

    def __init__(self, documents: str = "", searches: int = 2, top: int = 3) -> None:
        draw = random.Random(0)
        self._homes = {f"{first} {last}": draw.choice(PLACES) for first in FIRST for last in LAST}
        made_up = [f"{name} lives in {place}." for name, place in self._homes.items()]
        self.documents = Path(documents).read_text(encoding="utf-8").splitlines() if documents else made_up
        self.searches, self.top, self.max_turns = searches, top, searches + 1
        self._counts = [Counter(words(text)) for text in self.documents]
        self._in = Counter(word for counts in self._counts for word in counts)  # documents that have a word

    def tasks(self, split: str, seed: int) -> list[Task]:
        """Where somebody lives; a quarter of the people are held out."""
        people = sorted(self._homes)
        random.Random(seed).shuffle(people)
        chosen = people[len(people) // 4 :] if split == "train" else people[: len(people) // 4]
        asked = [(name, HOW.format(question=f"In which city does {name} live?")) for name in chosen]
        return [Task((Message("user", text),), self._homes[name], id=name) for name, text in asked]

    def find(self, query: str) -> list[str]:
        """The documents that share the rarest words with a query, best first."""
        scores = [
            sum(math.log(1 + len(self.documents) / self._in[word]) for word in {*words(query)} & counts.keys())
            for counts in self._counts
        ]
        best = sorted(range(len(scores)), key=lambda number: -scores[number])[: self.top]
        return [self.documents[number] for number in best if scores[number]]

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """One message: search, go on after what was found, answer."""
        seat, searched = seats["policy"], 0
        reply = await seat.turn(task.prompt, stop=STOPS)
        while searched < self.searches and (query := SEARCH.search(reply.text)):
            searched += 1
            found = "\n".join(self.find(query[1])) or "Nothing was found."
            reply = await seat.go_on(f"\n<information>\n{found}\n</information>\n", stop=STOPS)
        answer = ANSWER.search(reply.text)
        solved = answer is not None and words(answer[1]) == words(str(task.answer))
        return Outcome({"policy": float(solved)}, solved, {"searches": searched})
