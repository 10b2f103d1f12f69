"""Items 3 and 5: what is learned is what the policy must produce, and what was sampled is learned as it was sampled."""

import json
import random
from collections.abc import Sequence
from itertools import groupby

from posttrain.data.chat import ChatFormat, TrainingIds
from posttrain.data.packing import PackedRow, pack
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import TemplateError, UserError
from posttrain.recipes.verify.item import Item, violations
from posttrain.recipes.verify.subject import Recording, Subject, batch_of, longest
from posttrain.training.learner import Batch
from posttrain.types import Completion, Message, Request, ToolCall

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
    sampled = 0
    for cut in (False, True):  # turns that end with the stop token, and turns that are cut by their length
        said: list[tuple[Request, Completion]] = []
        engine = Recording(ScriptedEngine(lambda request, cut=cut: _spoken(chat, cut), chat.stop_ids), said)
        batch = batch_of(subject.sample(subject.policy, engine=engine, turns=2))
        found += differences(batch, said)
        sampled += sum(len(completion.token_ids) for _, completion in said)
    whole = "one sequence" if len(examples) == 1 else "a sequence per turn, for the template rewrites earlier ones"
    return violations(
        "loss mask",
        found,
        f"exactly {sum(sum(e.mask) for e in examples)} tokens of 2 assistant turns are learned ({whole}), their stop "
        f"tokens included, and of dialogues with a tool the {sampled} sampled tokens alone; {told}",
    )


def same_tokens(subject: Subject) -> Item:
    """Sampled ids reach the update as they are, also ids that decoding and encoding would change."""
    said: list[tuple[Request, Completion]] = []
    batch = batch_of(subject.sample(subject.policy, engine=Recording(subject.policy.engine, said), turns=2))
    found = differences(batch, said)
    chat, odd = subject.policy.chat, _unstable(subject)
    scripted: list[tuple[Request, Completion]] = []
    engine = Recording(ScriptedEngine(lambda request: (*odd, min(chat.stop_ids)), chat.stop_ids), scripted)
    found += differences(batch_of(subject.sample(subject.policy, engine=engine, turns=2)), scripted)
    again = list(chat.tokenizer.encode(chat.decode(odd), add_special_tokens=False))
    return violations(
        "same tokens",
        found,
        f"{sum(len(c.token_ids) for _, c in said)} tokens of two-turn dialogues, and ids such as {list(odd)} which "
        f"decoding and encoding would have made {again}",
    )


def differences(batch: Batch, said: Sequence[tuple[Request, Completion]]) -> list[str]:
    """How packed rows differ from what the engine was shown and said: sequences, learned tokens, what predicts them."""
    whole = {(*request.token_ids, *completion.token_ids) for request, completion in said}
    ends = {s for s in whole if not any(other != s and other[: len(s)] == s for other in whole)}  # the last turns
    sampled = {
        ((*request.token_ids, *completion.token_ids[:i]), token)
        for request, completion in said
        for i, token in enumerate(completion.token_ids)
    }
    found: list[str] = []
    for row in pack(batch.examples, 2 * longest(batch)):
        for number, learned in sequences(row).items():
            sequence = (*batch.examples[number].prefix, *batch.examples[number].continuation)
            if sequence not in ends:
                found.append(f"sequence {number} is not one that the engine was shown and said")
            expected = {(seen, token) for seen, token in sampled if (*seen, token) == sequence[: len(seen) + 1]}
            if sorted(learned) != sorted(expected):
                found.append(
                    f"sequence {number} learns {len(learned)} tokens where {len(expected)} were sampled, or others"
                )
    return found


def sequences(row: PackedRow) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """By example: each learned token behind all that it is predicted from; read from the layout alone."""
    visible: dict[int, tuple[int, ...]] = {}
    at = 0
    for prefix, lengths in row.families:
        shared = tuple(row.token_ids[at : at + prefix])
        visible |= {at + i: shared[: i + 1] for i in range(prefix)}
        at += prefix
        for length in lengths:
            own = tuple(row.token_ids[at : at + length])
            visible |= {at + i: shared + own[: i + 1] for i in range(length)}
            at += length
    learned: dict[int, list[tuple[tuple[int, ...], int]]] = {number: [] for number in row.examples}
    for number, source, target in zip(row.rows, row.sources, row.targets, strict=True):
        learned[number].append((visible[source], target))
    return learned


def _in_demonstrations(chat: ChatFormat, examples: Sequence[TrainingIds]) -> list[str]:
    """Every assistant turn is learned once, to its stop token, behind the very prompt that it would see."""
    found: list[str] = []
    turns = [m.content for m in CONVERSATION if m.role == "assistant"]
    together = len(examples) == 1  # one example with all turns, or one per turn
    for number, (token_ids, mask) in enumerate(examples):
        at = 0
        spans: list[tuple[bool, list[int]]] = []
        for learned, part in groupby(mask):
            length = len(list(part))
            spans.append((learned, token_ids[at : at + length]))
            at += length
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
    runs = [
        (learned, [token for token, _ in run])
        for token_ids, mask in examples
        for learned, run in groupby(zip(token_ids, mask, strict=True), key=lambda pair: pair[1])
    ]
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


def _spoken(chat: ChatFormat, cut: bool) -> tuple[int, ...]:
    """A reply; one that is cut goes on for longer than any limit here."""
    ids = tuple(chat.tokenizer.encode("I will ask the tool.", add_special_tokens=False))
    return ids * 1000 if cut else (*ids, min(chat.stop_ids))


def _unstable(subject: Subject) -> tuple[int, ...]:
    """Token ids that come back otherwise when they are decoded and encoded."""
    chat = subject.policy.chat
    draw = random.Random(subject.seed)
    special = set(chat.tokenizer.all_special_ids) | chat.stop_ids
    ordinary = [i for i in range(subject.policy.model.head.shape[0]) if i not in special]
    for _ in range(10_000):
        ids = tuple(draw.choices(ordinary, k=4))
        # an id beyond the tokenizer's own, which padded vocabularies have, says nothing and would prove nothing
        says = all(chat.decode([i]) for i in ids)
        if says and tuple(chat.tokenizer.encode(chat.decode(ids), add_special_tokens=False)) != ids:
            return ids
    raise UserError("no token ids were found that decoding and encoding would change, so this cannot be checked here")
