"""An engine that samples one token at a time of as many requests as there are, and says what it did."""

import contextlib
import time
from dataclasses import dataclass, field

from posttrain.engine.engine import finish_all
from posttrain.types import Completion, StopReason


@dataclass
class Stepwise:
    """A request is done after its `max_new_tokens` steps; its tokens are its seed, so that each answer is its own.

    `each_step` is called before every step, with its number: to wait, to fail, or to be interrupted there.
    """

    each_step: object = lambda number: None
    running: dict = field(default_factory=dict)  # by the engine's number: the request, and its tokens so far
    steps: list = field(default_factory=list)  # the seeds of each step, and when it was
    added: list = field(default_factory=list)
    cancelled: list = field(default_factory=list)
    opened: int = 0
    turns: bool = False
    on_tokens: object = None

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        self.running, self.on_tokens, self.opened = {}, on_tokens, self.opened + 1
        self.turns = turns
        yield self

    def generate(self, requests, on_tokens=None):
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)

    def add(self, number, request):
        if not request.token_ids:
            raise ValueError("an empty prompt")
        self.running[number] = (request, [])
        self.added.append(request.seed)

    def cancel(self, number):
        if number in self.running:
            self.cancelled.append(self.running.pop(number)[0].seed)

    def step(self):
        self.each_step(len(self.steps))
        self.steps.append(([request.seed for request, _ in self.running.values()], time.monotonic()))
        done = {}
        for number, (request, tokens) in list(self.running.items()):
            tokens.append(request.seed)
            if len(tokens) == request.sampling.max_new_tokens:
                del self.running[number]
                done[number] = Completion(tuple(tokens), (-1.0,) * len(tokens), StopReason.LENGTH)
        if self.on_tokens:
            self.on_tokens(len(self.steps[-1][0]))
        return done

    @property
    def batches(self):
        """The seeds of each step."""
        return [seeds for seeds, _ in self.steps]
