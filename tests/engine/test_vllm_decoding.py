"""vLLM's in-process engine over a scheduler that is played: stop strings, and logprobs of given tokens."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

from posttrain.engine.vllm import _Decoding, sampling_settings
from posttrain.errors import UserError
from posttrain.types import Request, Sampling, StopReason
from tests.engine.test_transformers import decode
from tests.tiny import CONTEXT, STOP

Logprob = namedtuple("Logprob", "logprob")


class Scheduler:
    """Says one token of a script at each step, and knows nothing of stop strings, as vLLM without a tokenizer."""

    def __init__(self, script):
        self.script, self.running, self.aborted = script, {}, []

    def add_request(self, name, prompt, settings):
        self.running[name] = (prompt["prompt_token_ids"], settings, [])

    def abort_request(self, names):
        self.aborted += names
        for name in names:
            del self.running[name]

    def step(self):
        answers = []
        for name, (prompt, settings, said) in list(self.running.items()):
            said.append(self.script[len(said)])
            finished = len(said) == settings["max_tokens"] or said[-1] in settings["stop_token_ids"]
            logprobs = [{token: Logprob(-float(place))} for place, token in enumerate(said)]
            output = SimpleNamespace(token_ids=list(said), logprobs=logprobs)
            known = [None, *({token: Logprob(-0.5 * token)} for token in prompt[1:])]
            answers.append(
                SimpleNamespace(
                    request_id=name,
                    outputs=[output],
                    finished=finished,
                    prompt_logprobs=known if settings["prompt_logprobs"] else None,
                )
            )
            if finished:
                del self.running[name]
        return answers


@pytest.fixture
def counts():
    return []


def decoding(scheduler, counts):
    vllm = SimpleNamespace(SamplingParams=lambda **settings: settings)
    model, llm = SimpleNamespace(name="tiny"), SimpleNamespace(llm_engine=scheduler)
    engine = SimpleNamespace(_vllm=vllm, _llm=llm, _stop_ids=STOP, _context=CONTEXT, _model=model, _decode=decode)
    return _Decoding(engine, counts.append)


def finished(one):
    done = {}
    while one._running:
        done |= one.step()
    return done


def test_a_request_is_aborted_when_a_stop_string_occurs(counts):
    scheduler = Scheduler([12, 34, 5, 6, 7, 8])
    one = decoding(scheduler, counts)
    one.add(3, Request((9,), Sampling(6, stop=("40", "2340"))))  # 12 34 05: from within the first to within the third
    one.add(4, Request((9,), Sampling(6, stop=("never",))))
    done = finished(one)
    assert done[3].token_ids == (12, 34, 5) and done[3].logprobs == (0.0, -1.0, -2.0)
    assert done[3].stop_reason is StopReason.STOP and scheduler.aborted == ["3"]
    assert done[4].token_ids == (12, 34, 5, 6, 7, 8) and done[4].stop_reason is StopReason.LENGTH
    assert sum(counts) == 3 + 6


def test_the_logprobs_of_given_tokens_are_vllms_of_the_prompt(counts):
    one = decoding(Scheduler([12]), counts)
    one.add(0, Request((9, 2, 4, 6), Sampling(5, temperature=0.3), scored_from=2))
    assert finished(one)[0].scored == (-2.0, -3.0) and sum(counts) == 0
    settings = sampling_settings(Request((9, 2), Sampling(5, temperature=0.3), scored_from=1), STOP, CONTEXT)
    assert (settings["temperature"], settings["max_tokens"], settings["prompt_logprobs"]) == (1.0, 1, 1)
    assert sampling_settings(Request((9, 2), Sampling(5)), STOP, CONTEXT)["prompt_logprobs"] is None


def test_a_setting_that_vllm_refuses_is_one_line(counts):
    def refuse(**settings):
        raise ValueError(f"temperature must be in\n  [0, 2], got {settings['temperature']}")

    one = decoding(Scheduler([12]), counts)
    one.of._vllm.SamplingParams = refuse
    with pytest.raises(UserError) as refused:
        one.add(0, Request((9,), Sampling(5, temperature=3.0)))
    assert str(refused.value) == (
        "the engine vllm cannot sample so: temperature must be in [0, 2], got 3.0; "
        "change that, or use `engine=embedded`"
    )
    assert not one._running
