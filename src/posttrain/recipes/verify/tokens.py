"""Items 3, 5 and 10: what is learned is what the policy must produce and what was sampled, as it was sampled, once."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from posttrain.data.chat import ChatFormat, TrainingIds
from posttrain.data.packing import PackedRow, pack
from posttrain.engine.policy import Policy
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import TemplateError, UserError
from posttrain.recipes.verify.subject import LONGEST, Dialogue, GoesOn, Item, Subject, batch_of, longest
from posttrain.training.learner import Batch
from posttrain.types import Completion, Message, Request, ToolCall

TURNS = 3  # of a dialogue
CONVERSATION = (
    Message("user", "What is 2 + 2?"),
    Message("assistant", "Let me add them.\n2 + 2 = 4"),
    Message("user", "And 3 more?"),
    Message("assistant", "4 + 3 = 7"),
)


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = (
    Message("user", "Does it rain in Paris?", tools=(json.dumps(_WEATHER),)),
    Message("assistant", "", (ToolCall("call00001", "get_weather", '{"city": "Paris"}'),)),
    Message("tool", '{"sky": "overcast"}', tool_call_id="call00001", name="get_weather"),
    Message("assistant", "No, it does not."),
)


def loss_mask(subject: Subject) -> Item:
    """Demonstrations by the model's own chat template, on the first turn and on a later one; then sampled turns."""
    chat = subject.policy.chat
    examples = chat.training_examples(CONVERSATION)
    found = _in_demonstrations(chat, examples)
    wrong, told = in_calls(chat)
    found += wrong
    sampled, ids = 0, tuple(chat.tokenizer.encode("I will ask the tool.", add_special_tokens=False))
    for cut in (False, True):  # turns that end with the stop token, and turns that are cut by their length
        spoken = ids * 1000 if cut else (*ids, min(chat.stop_ids))
        engine = ScriptedEngine(lambda request, spoken=spoken: spoken, chat.stop_ids)
        groups, said = subject.recorded(subject.policy, Dialogue(max_turns=2), engine)
        found += differences(batch_of(groups), said)
        sampled += sum(len(completion.token_ids) for _, completion in said)
    whole = "one sequence" if len(examples) == 1 else "a sequence per turn, for the template rewrites earlier ones"
    return Item.unless(
        "loss mask",
        found,
        f"exactly {sum(sum(e.mask) for e in examples)} tokens of 2 assistant turns are learned ({whole}), their stop "
        f"tokens included, and of dialogues with a tool the {sampled} sampled tokens alone; {told}",
    )


def same_tokens(subject: Subject) -> Item:
    """Sampled ids reach the update as they are, also ids that decoding and encoding would change."""
    chat, odd = subject.policy.chat, _unstable(subject)
    groups, said = subject.recorded(subject.policy, Dialogue(max_turns=2))
    engine = ScriptedEngine(lambda request: (*odd, min(chat.stop_ids)), chat.stop_ids)
    scripted = subject.recorded(subject.policy, Dialogue(max_turns=2), engine)
    found = differences(batch_of(groups), said) + differences(batch_of(scripted[0]), scripted[1])
    again = list(chat.tokenizer.encode(chat.decode(odd), add_special_tokens=False))
    return Item.unless(
        "same tokens",
        found,
        f"{sum(len(c.token_ids) for _, c in said)} tokens of two-turn dialogues, and ids such as {list(odd)} which "
        f"decoding and encoding would have made {again}",
    )


class _Rewriting:
    """A chat format that, before the last turn, shows the conversation otherwise than it was: a branch begins."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> object:
        return getattr(self._chat, name)

    def followup_ids(
        self, history: Sequence[Message], new_messages: Sequence[Message], *, stopped: bool, unchanged: bool = False
    ) -> list[int]:
        said = sum(message.role == "assistant" for message in history)
        if said == TURNS - 1:
            raise TemplateError("this template rewrites earlier turns")
        return self._chat.followup_ids(history, new_messages, stopped=stopped, unchanged=unchanged)


def trained_once(subject: Subject) -> Item:
    """Dialogues of three turns with what a tool said between them, in one branch and in two; messages that go on."""
    config, policy = subject.config, subject.policy
    subject = replace(subject, config=replace(config, max_new_tokens=min(config.max_new_tokens, LONGEST)))
    found: list[str] = []
    told: list[str] = []
    rewriting = Policy(policy.model, _Rewriting(policy.chat), policy.engine)  # pyright: ignore[reportArgumentType]
    for branches, speaker in ((1, policy), (2, rewriting)):
        groups, said = subject.recorded(speaker, Dialogue(max_turns=TURNS))
        if {len(row.trajectory.branches) for group in groups for row in group.rows} != {branches}:
            found.append(f"a trajectory has another number of branches than {branches}")
        found += differences(batch_of(groups), said)
        told.append(f"{sum(len(done.token_ids) for _, done in said)} tokens of dialogues in {branches}")
    groups, said = subject.recorded(policy, GoesOn())
    found += differences(batch_of(groups), [each for each in said if each[0].sampling.top_p == 1])
    inserted = sum(len(row.trajectory.turns) > TURNS for group in groups for row in group.rows)
    return Item.unless(
        "trained once",
        found,
        f"each of {' and '.join(told)} branches is trained exactly once, behind what it was sampled after, and nothing "
        f"else is: in {inserted} messages that stop at a string and go on, no inserted text, and no truncated turn",
    )


def differences(batch: Batch, said: Sequence[tuple[Request, Completion]]) -> list[str]:
    """Sampled tokens that are trained never or twice, and others that are: each with all that stood before it."""
    sampled = Counter(
        ((*request.token_ids, *done.token_ids[:i]), token)
        for request, done in said
        for i, token in enumerate(done.token_ids)
    )
    learned = Counter(each for row in pack(batch.examples, 2 * longest(batch)) for each in _learned(row))
    missing, more = sampled - learned, learned - sampled
    return [
        f"{sum(counted.values())} tokens {what}"
        for what, counted in (("that were sampled are not trained", missing), ("are trained besides, or twice", more))
        if counted
    ]


def _learned(row: PackedRow) -> list[tuple[tuple[int, ...], int]]:
    """Each learned token behind all that it is predicted from; read from the layout alone."""
    visible: list[tuple[int, ...]] = []
    for prefix, lengths in row.families:
        shared = tuple(row.token_ids[len(visible) : len(visible) + prefix])
        visible += [shared[: i + 1] for i in range(prefix)]
        for length in lengths:
            own = tuple(row.token_ids[len(visible) : len(visible) + length])
            visible += [shared + own[: i + 1] for i in range(length)]
    return [(visible[source], target) for source, target in zip(row.sources, row.targets, strict=True)]


def _in_demonstrations(chat: ChatFormat, examples: Sequence[TrainingIds]) -> list[str]:
    """Every assistant turn is learned once, to its stop token, behind the very prompt that it would see."""
    found: list[str] = []
    turns = [m.content for m in CONVERSATION if m.role == "assistant"]
    together = len(examples) == 1  # one example with all turns, or one per turn
    for number, (token_ids, mask) in enumerate(examples):
        spans = _spans(token_ids, mask)
        learned_spans = [ids for learned, ids in spans if learned]
        expected = turns if together else turns[number : number + 1]
        if len(learned_spans) != len(expected):
            found.append(f"{len(learned_spans)} turns are learned where there are {len(expected)}")
            continue
        for text, ids in zip(expected, learned_spans, strict=True):
            if ids[-1] not in chat.stop_ids or any(i in chat.stop_ids for i in ids[:-1]):
                found.append(f"the turn {text!r} does not end with its stop token, or has another")
            if not chat.decode(ids).strip().endswith(text):
                found.append(f"the turn {text!r} is learned as {chat.decode(ids)!r}")
        shown = [ids for learned, ids in spans if not learned]
        prompts = [chat.prompt_ids(CONVERSATION[: 2 * number + 1])]
        if together:
            prompts.append(chat.followup_ids(CONVERSATION[:2], CONVERSATION[2:3], stopped=True))
        if shown != prompts:
            found.append("what stands before a turn in training is not what stands there when it is sampled")
    return found


def in_calls(chat: ChatFormat) -> tuple[list[str], str]:
    """What is wrong where a tool is called, and what was found: a call is learned, its result is not."""
    try:
        examples = chat.training_examples(CALLS)
    except TemplateError:
        return [], "the chat template knows no tool calls, which would be an error in data"
    found: list[str] = []
    runs = [span for example in examples for span in _spans(*example)]
    said = [chat.decode(ids) for learned, ids in runs if learned]
    if len(said) != 2 or not all(word in said[0] for word in ("get_weather", "Paris")):
        found.append(f"of a call of a tool and an answer, {said!r} is learned")
    elif not said[1].strip().endswith(CALLS[3].content):
        found.append(f"the answer to the result of a tool is learned as {said[1]!r}")
    if any("overcast" in text for text in said):
        found.append("the result of a tool is learned")
    if not any("overcast" in chat.decode(ids) for learned, ids in runs if not learned):
        found.append("the result of a tool is not read")
    if any(ids[-1] not in chat.stop_ids for learned, ids in runs if learned):
        found.append("a turn that calls a tool does not end with a stop token")
    return (
        found,
        f"a call of a tool is learned ({sum(sum(e.mask) for e in examples)} tokens with the answer), its result is not",
    )


def _spans(token_ids: Sequence[int], mask: Sequence[bool]) -> list[tuple[bool, list[int]]]:
    """Tokens that are all learned, or all not, one such stretch after the other."""
    pairs = groupby(zip(token_ids, mask, strict=True), key=lambda pair: pair[1])
    return [(learned, [token for token, _ in pair]) for learned, pair in pairs]


def _unstable(subject: Subject) -> tuple[int, ...]:
    """Token ids that come back otherwise when they are decoded and encoded."""
    chat = subject.policy.chat
    draw = random.Random(subject.config.seed)
    special = set(chat.tokenizer.all_special_ids) | chat.stop_ids
    ordinary = [i for i in range(subject.policy.model.head.shape[0]) if i not in special]
    for _ in range(10_000):
        ids = tuple(draw.choices(ordinary, k=4))
        # an id beyond the tokenizer's own, which padded vocabularies have, says nothing and would prove nothing
        says = all(chat.decode([i]) for i in ids)
        if says and tuple(chat.tokenizer.encode(chat.decode(ids), add_special_tokens=False)) != ids:
            return ids
    raise UserError("no token ids were found that decoding and encoding would change, so this cannot be checked here")
