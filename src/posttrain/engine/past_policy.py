"""The policy as it was some updates ago, as a chat model: an opponent that is renewed while the policy is trained."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.data.chat import ChatFormat
from posttrain.engine.chat_models import EngineChat
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.language_model import LanguageModel
from posttrain.types import Message, Reply, Sampling


class PastPolicy:
    """Conforms to `types.ChatModel`; nothing that it says is trained.

    At most `copies` of the trained weights are in host memory, and in checkpoints. They are taken every
    i = ceil(behind / (copies - 1)) steps, so that the opponent of step s is the policy of step s - behind or of one of
    the i - 1 steps before it; until there is such a one, that with which the run began. Where `copies` is more than
    `behind`, it is exactly `behind` steps old.

    Args:
        behind: steps, 1 or more.
        copies: 2 or more.
    """

    def __init__(self, behind: int, copies: int) -> None:
        self._behind, self._every = behind, -(-behind // (copies - 1))
        self._file = f"policy-{behind}-behind-{copies}.safetensors"
        self._kept: dict[int, dict[str, Tensor]] = {}  # weights before each step
        self.begun_at = 0  # the step that began with the weights that it has
        self.at_once = 256

    def bind(self, model: LanguageModel, chat_format: ChatFormat, cache_gb: float) -> None:
        """Follow this policy, whose network it copies; its weights are those of the policy until it is renewed."""
        self._policy, self._own = model, copy.deepcopy(model)
        self._own.network.requires_grad_(False)
        engine = TransformersEngine(self._own, chat_format.stop_ids, cache_gb=cache_gb, decode=chat_format.decode)
        self._chat = EngineChat(Client(Scheduler(engine, own_thread=True)), chat_format, model.context)

    @torch.no_grad()
    def renew(self, step: int) -> None:
        """Become the policy of `behind` steps before this one, which has not begun; nothing is sampled meanwhile."""
        if step % self._every == 0 or not self._kept:
            self._kept[step] = {name: p.detach().to("cpu", copy=True) for name, p in self._policy.trainable()}
        self.begun_at = max((each for each in self._kept if each <= step - self._behind), default=min(self._kept))
        self._kept = {each: weights for each, weights in self._kept.items() if each >= self.begun_at}
        own = dict(self._own.network.named_parameters())
        for name, weight in self._kept[self.begun_at].items():
            own[name].copy_(weight)

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`."""
        return await self._chat.chat(messages, sampling=sampling, tools=tools, seed=seed)

    def save(self, folder: Path) -> None:
        """Write the weights that are kept into a checkpoint's folder."""
        kept = {f"{step}/{name}": weight for step, weights in self._kept.items() for name, weight in weights.items()}
        save_file(kept, folder / self._file)

    def restore(self, folder: Path) -> None:
        """Keep the weights that a checkpoint has."""
        self._kept = {}
        for key, weight in load_file(folder / self._file).items():
            step, _, name = key.partition("/")
            self._kept.setdefault(int(step), {})[name] = weight
