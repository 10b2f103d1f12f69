"""The kit itself must catch an engine that is wrong."""

import contextlib
from dataclasses import replace

import pytest

from posttrain.engine.engine import BatchEngine, Batches, check_engine, first_stop
from posttrain.types import StopReason
from tests.engine.test_transformers import subject
from tests.tiny import tiny_llama


class Faulty(BatchEngine):
    """A right engine whose answers are bent."""

    def __init__(self, engine, bend):
        self.engine, self.bend = engine, bend

    def generate(self, requests, on_tokens=None):
        return self.bend(requests, self.engine.generate(requests, on_tokens))


def shifted(requests, completions):
    return [replace(c, logprobs=tuple(v - 0.01 for v in c.logprobs)) for c in completions]


def reordered(requests, completions):
    return completions[::-1]


def unstopped(requests, completions):
    return [replace(c, stop_reason=StopReason.LENGTH) for c in completions]


def babbling(requests, completions):
    return [replace(c, token_ids=(*c.token_ids, 5), logprobs=(*c.logprobs, -1.0)) for c in completions]


def short(requests, completions):
    return completions[:-1]


def seedless(requests, completions):
    first = {r.token_ids: c for r, c in zip(requests[::-1], completions[::-1], strict=True)}
    return [first[r.token_ids] for r in requests]


@pytest.mark.parametrize(
    ("bend", "complaint"),
    [
        (shifted, "differ from the model's own"),
        (reordered, "differ from the model's own"),
        (unstopped, "expected 'stop'"),
        (babbling, "went on after a stop token"),
        (short, "completions"),
        (seedless, "six seeds"),
    ],
)
def test_a_fault_is_named(bend, complaint):
    good = subject(tiny_llama())
    bad = replace(good, engine=Faulty(good.engine, bend), own_logprobs=tolerant(good.own_logprobs))
    assert any(complaint in line for line in check_engine(bad))


def tolerant(score):
    """Scores of completions that no sampler can have drawn are all wrong, not errors."""

    def safe(request, token_ids):
        return score(request, token_ids) if token_ids else []

    return safe


def test_an_engine_that_takes_any_prompt_is_named():
    good = subject(tiny_llama())

    class Lax(Faulty):
        def generate(self, requests, on_tokens=None):
            fine = [replace(r, token_ids=(r.token_ids or (5,))[:20]) for r in requests]
            return self.engine.generate(fine, on_tokens)

    lines = check_engine(replace(good, engine=Lax(good.engine, None)))
    assert sum("was not refused" in line for line in lines) == 2


def test_an_engine_that_does_not_report_its_tokens_is_named():
    good = subject(tiny_llama())

    class Silent(Faulty):
        def generate(self, requests, on_tokens=None):
            return self.engine.generate(requests)

    assert any("reported 0 tokens" in line for line in check_engine(replace(good, engine=Silent(good.engine, None))))


class Opened(Faulty):
    """An engine that is right when it is asked for a batch, and wrong when requests come one by one."""

    def __init__(self, engine, decoding):
        self.engine, self.decoding = engine, decoding

    def generate(self, requests, on_tokens=None):
        return self.engine.generate(requests, on_tokens)

    def open(self, on_tokens=None, *, turns=False):
        return contextlib.nullcontext(self.decoding(self.generate))


class Forgets(Batches):
    def cancel(self, number):
        self._waiting.clear()


class Confuses(Batches):
    def step(self):
        done = super().step()
        return dict(zip(done, reversed(done.values()), strict=True))


class Remembers(Batches):
    """Answers a longer prompt as the shorter one that it begins with."""

    def step(self):
        self._waiting = {
            n: replace(r, token_ids=r.token_ids[: len(r.token_ids) // 2 + 1]) for n, r in self._waiting.items()
        }
        return super().step()


@pytest.mark.parametrize(
    ("decoding", "complaint"),
    [(Forgets, "were never done"), (Confuses, "come and go"), (Remembers, "turn 2 draws other tokens")],
)
def test_a_fault_in_what_is_under_way_is_named(decoding, complaint):
    good = subject(tiny_llama())
    lines = check_engine(replace(good, engine=Opened(good.engine, decoding)))
    assert any(complaint in line for line in lines)


@pytest.mark.parametrize(
    ("stops", "expected"), [([], None), (["zz"], None), (["c"], 3), (["cd", "b"], 2), (["de"], 5), (["abcde"], 5)]
)
def test_a_stop_string_ends_with_the_token_that_completes_it(stops, expected):
    assert first_stop("abcdef", stops, lambda tokens: "".join(tokens)) == expected
