"""The bodies of requests in JSON. What a newer SDK adds is ignored."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Name = Annotated[str, Field(max_length=512)]
LEAST_TEMPERATURE = 1e-4  # logits / temperature are finite in float32; else the step would fail, of all requests in it
Number = Annotated[int, Field(ge=0, lt=10**9)]  # nine digits, as in ids


class Body(BaseModel):
    """Fields may begin with `model_`."""

    model_config = ConfigDict(protected_namespaces=())


class LoraConfig(Body):
    """The adapter that a client asks for."""

    rank: int = Field(default=32, ge=1)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class Heartbeat(Body):
    """POST session_heartbeat."""

    session_id: Name


class CreateModel(Body):
    """POST create_model."""

    session_id: Name
    model_seq_id: Number
    base_model: Name
    lora_config: LoraConfig | None = None


class OfModel(Body):
    """A request about one model: POST get_info, unload_model."""

    model_id: Name


class Asked(OfModel):
    """A request that is done in its turn."""

    seq_id: Number


class OptimStep(Asked):
    """POST optim_step."""

    adam_params: dict[str, float]


class Save(Asked):
    """POST save_weights; save_weights_for_sampler, which may be for a sampling session, and overwrites nothing."""

    path: Name | None = None
    ttl_seconds: int | None = None
    overwrite: bool | None = False
    sampling_session_seq_id: Number | None = None


class LoadWeights(Body):
    """POST load_weights: onto a model, or into a new one of a session."""

    path: Name
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Number | None = None
    session_id: Name | None = None
    model_seq_id: Number | None = None


class CreateSamplingSession(Body):
    """POST create_sampling_session."""

    session_id: Name
    sampling_session_seq_id: Number
    base_model: Name | None = None
    model_path: Name | None = None


class Chunk(Body):
    """A part of a prompt."""

    type: str = "encoded_text"
    tokens: list[int] = Field(default_factory=list[int])


class Prompt(Body):
    """A prompt."""

    chunks: list[Chunk] = Field(max_length=4096)


def _temperature(value: float) -> float:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError(f"must be 0, for the most likely token, or at least {LEAST_TEMPERATURE}; got {value}")
    return value


class SamplingParams(Body):
    """How to sample."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: Annotated[float, AfterValidator(_temperature)] = Field(default=1.0, ge=0, le=100)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)


class NotServed(Body):
    """What POST asample must leave out."""

    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None


class Sample(NotServed):
    """POST asample."""

    prompt: Prompt
    sampling_params: SamplingParams
    num_samples: int = Field(default=1, ge=1)
    sampling_session_id: Name | None = None
    seq_id: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=64)


class RetrieveFuture(Body):
    """POST retrieve_future."""

    request_id: Name


class WeightsInfo(Body):
    """POST weights_info."""

    tinker_path: Name


Json = dict[str, Any]
