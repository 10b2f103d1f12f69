"""Item 11: samples do not depend on the order of requests or on the state of the engine."""

from collections.abc import Sequence

from posttrain.engine.engine import finish_all
from posttrain.engine.policy import Policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.recipes.verify.bounds import GAP_MAX
from posttrain.recipes.verify.item import Item, within
from posttrain.recipes.verify.logprobs import format_name
from posttrain.recipes.verify.subject import Subject
from posttrain.types import Completion, Engine, Request, Sampling

LONGEST = 8  # tokens of a reply
SMALL_GB = 1e-4  # of keys and values: hardly one sequence, and nothing is remembered for long


def arrivals(subject: Subject) -> Item:
    """Two turns of requests together, one by one, and with another cache, in every format that is in use."""
    sampling = Sampling(min(subject.max_new_tokens, LONGEST))
    details: list[str] = []
    holds, largest = True, 0.0
    for policy in subject.policies:
        dtype = policy.model.dtype
        first = [
            Request(tuple(policy.chat.prompt_ids(task.prompt)), sampling, subject.seed + n)
            for task in subject.tasks
            for n in range(subject.completions)
        ]
        done = policy.engine.generate(first)
        later = _continued(first, done)
        ways = {
            "one by one": (first, done, _one_by_one(policy.engine, first)),
            "remembered": (later, policy.engine.generate(later), _remembered(policy, 1.5, first, later)),
            "forgotten": (later, policy.engine.generate(later), _remembered(policy, SMALL_GB, first, later)),
        }
        same, tokens, largest = 0, 0, 0.0
        for _, expected, found in ways.values():
            for one, other in zip(expected, found, strict=True):
                alike = _alike(one.token_ids, other.token_ids)
                same, tokens = same + alike, tokens + len(one.token_ids)
                gaps = zip(one.logprobs[:alike], other.logprobs[:alike], strict=True)
                largest = max([largest, *(abs(a - b) for a, b in gaps)])
        exact = dtype.itemsize < 4 or same == tokens
        holds = holds and exact and largest <= GAP_MAX[dtype]
        details.append(
            f"{format_name(dtype)}: {same} of {tokens} tokens are the same, logprobs {largest:.1e} apart at most"
        )
    told = "asked together or one by one, with what earlier turns left or without"
    return within("arrivals", largest, GAP_MAX[subject.dtype], f"{'; '.join(details)}; {told}", besides=holds)


def _continued(requests: Sequence[Request], done: Sequence[Completion]) -> list[Request]:
    """A second turn of each: what was shown and said, and the prompt again."""
    return [
        Request((*r.token_ids, *d.token_ids, *r.token_ids[1:]), r.sampling, r.seed + 1000)
        for r, d in zip(requests, done, strict=True)
    ]


def _one_by_one(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Requests arrive one step apart, while other requests join and leave the batch."""
    found: dict[int, Completion] = {}
    with engine.open() as decoding:
        for number, request in enumerate(requests):
            decoding.add(number, request)
            decoding.add(-1 - number, request)
            found |= decoding.step()
            decoding.cancel(-1 - number)
        while not all(number in found for number in range(len(requests))):
            found |= decoding.step()
    return [found[number] for number in range(len(requests))]


def _remembered(
    policy: Policy, cache_gb: float, first: Sequence[Request], later: Sequence[Request]
) -> list[Completion]:
    """The second turns, after the first ones on the same engine, in the opposite order."""
    engine = TransformersEngine(policy.model, policy.chat.stop_ids, cache_gb=cache_gb)
    with engine.open(turns=True) as decoding:
        finish_all(decoding, first[::-1])
        return finish_all(decoding, later[::-1])[::-1]


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
