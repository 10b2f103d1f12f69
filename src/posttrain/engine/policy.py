"""A policy to train and sample from: model, chat format and engine."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.background import all_of
from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import load_tokenizer
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.engine.vllm import VLLMEngine
from posttrain.engine.vllm_server import VLLMServer
from posttrain.errors import UserError, unknown
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, tokenizer_of
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.precision import default_device, dtype_of
from posttrain.types import Completion, Engine, Request

CUT = "\N{REPLACEMENT CHARACTER}"  # how a letter is decoded of which some bytes are still to come
ENGINES: Mapping[str, type[TransformersEngine | VLLMEngine]] = {"embedded": TransformersEngine, "vllm": VLLMEngine}


@dataclass(frozen=True)
class Policy:
    """Model, chat format and engine. The engine samples from the model's current weights."""

    model: LanguageModel
    chat: ChatFormat
    engine: Engine

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder (or an adapter's)."""
        self.model.save(folder)
        self.chat.tokenizer.save_pretrained(str(folder))


MakesEngine = Callable[[LanguageModel, Collection[int]], Engine]
"""From a model and the tokens that end a completion to what samples from its current weights."""


def check_engine(engine: object) -> None:
    """Check that an engine is a name in `ENGINES`, URLs, or an object that samples; raises `UserError`."""
    if not isinstance(engine, str):
        if not (callable(engine) or (hasattr(engine, "open") and hasattr(engine, "generate"))):
            raise UserError(
                f"`engine` is a name, addresses, an object with the methods open and generate, or a function of model "
                f"and stop tokens that makes one; got {type(engine).__name__}"
            )
    elif engine not in ENGINES and "://" not in engine:
        raise unknown("engine", engine, [*ENGINES, "http://HOST:PORT"])


def load_policy(
    name: str,
    *,
    precision: str = "auto",
    chat_template: str = "",
    template_args: str | Mapping[str, object] = "",
    lora: Lora | None = None,
    device: str = "auto",
    engine: str | Engine | MakesEngine = "embedded",
    cache_gb: float = 1.5,
    seed: int = 0,
) -> Policy:
    """Load a policy by hub id, folder, adapter folder, or the name of a packaged model.

    `chat_template` is a Jinja file in place of the tokenizer's own template, `template_args` are arguments of the
    template; both are saved with the policy. `engine` is a name in `ENGINES`, the address of a vLLM server, an object,
    or what makes one. `precision` is float32, bfloat16, or auto: what this machine computes faster. With `lora` a fresh
    adapter is trained instead of the whole model. Raises `UserError`, `ModelError` or `TemplateError`.
    """
    check_engine(engine)
    if isinstance(engine, str) and len(servers := engine.split()) > 1:
        raise UserError(f"`engine` names {len(servers)} servers, and one process has one: leave out the others")
    device = default_device() if device == "auto" else device
    dtype = dtype_of(precision, device)
    tokenizer = load_tokenizer(tokenizer_of(name), chat_template, template_args)
    model = load_model(name, dtype=dtype, device=device)
    if lora:
        model = add_adapter(model, lora, seed=seed)
    chat = ChatFormat(tokenizer, model.stop_ids)
    if not isinstance(engine, str):
        return Policy(model, chat, engine(model, chat.stop_ids) if callable(engine) else engine)
    if engine in ENGINES:
        return Policy(model, chat, ENGINES[engine](model, chat.stop_ids, cache_gb=cache_gb, decode=chat.decode))
    return Policy(model, chat, VLLMServer(model, chat.stop_ids, url=engine, decode=chat.decode))


def streamed(
    engine: Engine, requests: Sequence[Request], chat: ChatFormat, show: Callable[[int, str], object]
) -> list[Completion]:
    """As `Engine.generate`; `show` gets the number of a request and its new text as it comes, in whole letters."""
    scheduler = Scheduler(engine)
    client = Client(scheduler)

    async def one(number: int, request: Request) -> Completion:
        ids: list[int] = []
        shown = 0

        def told(new: Sequence[int]) -> None:
            nonlocal shown
            ids.extend(new)
            text = chat.decode(ids).rstrip(CUT)
            show(number, text[shown:])
            shown = len(text)

        done = await client.submit(request, on_new=told)
        if rest := chat.decode(done.token_ids)[shown:]:
            show(number, rest)
        return done

    return scheduler.run(client, all_of(one(*each) for each in enumerate(requests)))
