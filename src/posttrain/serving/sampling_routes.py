"""Routes of sampling sessions."""

import hashlib
import json
import secrets

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from posttrain.errors import UserError
from posttrain.serving.bodies import CreateSamplingSession, Json, Sample
from posttrain.serving.checkpoints import Address
from posttrain.serving.datum import check_tokens
from posttrain.serving.decoder import Done, Job, Samples
from posttrain.serving.guard import Owner
from posttrain.serving.journal import Entry
from posttrain.serving.losses import UNPUBLISHED
from posttrain.serving.operations import readable
from posttrain.serving.runs import failure
from posttrain.serving.samplers import Sampler
from posttrain.serving.services import Served, Services
from posttrain.serving.wire import PROTOBUF, sample_response
from posttrain.types import Request, Sampling

MAX_STOPS, MAX_STOP_LETTERS = 64, 256
NOT_SERVED = (
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)

router = APIRouter(prefix="/api/v1")


@router.post("/create_sampling_session")
def create_sampling_session(body: CreateSamplingSession, owner: Owner, served: Served) -> Json:
    """Begin to sample from the base model, or from a checkpoint."""
    session_id = served.sessions.check(owner, body.session_id)
    if body.base_model and not body.model_path and body.base_model != served.base.name:
        raise UserError(f"this server has the model '{served.base.name}'; got '{body.base_model[:80]}'")
    folder = ""
    if body.model_path:
        readable(body.model_path, owner, served.context)
        models = served.context.models
        folder = Address.of(body.model_path).folder(models).relative_to(models).as_posix()
    sampler_id = f"{session_id}:sample:{body.sampling_session_seq_id}"
    served.samplers.add(Sampler(sampler_id, owner, served.base.name, body.model_path or "", folder))
    return {"type": "create_sampling_session", "sampling_session_id": sampler_id}


@router.get("/samplers/{sampler_id}")
def get_sampler(sampler_id: str, owner: Owner, served: Served) -> Json:
    """What a sampling session samples from."""
    found = served.samplers.get(owner, sampler_id)
    return {"sampler_id": sampler_id, "base_model": found.base_model, "model_path": found.model_path or None}


@router.post("/asample")
def asample(body: Sample, owner: Owner, served: Served) -> Response:
    """Sample completions of a prompt."""
    if body.sampling_session_id is None:
        raise UserError("asample needs a sampling_session_id")
    if body.num_samples > (most := served.limits.samples_per_request):
        raise UserError(f"a request may have {most} samples; got {body.num_samples}")
    sampler = served.samplers.get(owner, body.sampling_session_id)
    seq = secrets.randbits(62) if body.seq_id is None else body.seq_id
    request_id = f"{sampler.sampler_id}:{seq}"
    ids = [f"{request_id}:{number}" for number in range(body.num_samples)]
    answer: Json = {"request_id": request_id, "sample_sequence_ids": ids}
    if served.futures.known(request_id):
        return JSONResponse(answer)
    served.pending.enter(owner, body.num_samples)

    def done(found: Samples | Exception) -> None:
        served.pending.leave(owner, body.num_samples)
        if isinstance(found, Exception):
            result = failure(found)
            if json.loads(result.body)["category"] == "server":
                served.report(f"{request_id}: {type(found).__name__}: {found}")
        else:
            result = Entry(PROTOBUF, sample_response(*found, with_own=bool(body.prompt_logprobs)))
        served.futures.finish(request_id, result)

    if not served.futures.open(request_id):  # the same request came twice at once
        served.pending.leave(owner, body.num_samples)
        return JSONResponse(answer)
    try:
        job = _job(body, sampler, served, done)
    except UserError as error:
        done(error)
    else:
        served.decoder.add(job)  # not as a task of the worker: each is followed by a step of its own
        served.worker.wake()
    return JSONResponse(answer)


def _job(body: Sample, sampler: Sampler, served: Services, done: Done) -> Job:
    """The request for the decoder.

    Raises:
        UserError: the prompt is empty, too long or not text, a token is outside the vocabulary, or there are too many
            stops.
    """
    base, params = served.base, body.sampling_params
    if refused := [name for name in NOT_SERVED if getattr(body, name)]:
        why = f" with the loss stable_reinforce: {UNPUBLISHED}" if refused[0] == "record_stability_info" else ""
        raise UserError(f"{refused[0]} is not served{why}")
    if any(chunk.type != "encoded_text" for chunk in body.prompt.chunks):
        raise UserError("the prompt has a chunk that is no text; images and audio are not served")
    tokens = tuple(token for chunk in body.prompt.chunks for token in chunk.tokens)
    if not 0 < len(tokens) < base.context:
        raise UserError(f"a prompt has 1 to {base.context - 1} tokens, so that one can follow; got {len(tokens)}")
    check_tokens(tokens, base.vocabulary, "the prompt")
    room = base.context - len(tokens)
    longest = room if params.max_tokens is None else min(params.max_tokens, room)
    most = served.limits.tokens_per_request
    if (len(tokens) + longest) * body.num_samples > most:
        raise UserError(f"prompt and samples may have {most} tokens together; ask for fewer samples, or shorter ones")
    ids, strings = _stops(params.stop)
    check_tokens(ids, base.vocabulary, "stop")
    if body.topk_prompt_logprobs > base.vocabulary:
        raise UserError(f"topk_prompt_logprobs is above the vocabulary's {base.vocabulary}")
    sampling = Sampling(longest, params.temperature, max(params.top_k, 0), params.top_p, tuple(strings))
    seed = secrets.randbits(63) if params.seed is None else params.seed
    requests = [Request(tokens, sampling, _seed(seed, number)) for number in range(body.num_samples)]
    return Job(
        served.samplers.saved(sampler.folder) if sampler.folder else "",
        requests,
        base.stop_ids | set(ids),
        bool(body.prompt_logprobs),
        body.topk_prompt_logprobs,
        done,
        sampler.owner,
    )


def _stops(stop: str | list[int] | list[str] | None) -> tuple[list[int], list[str]]:
    """Stop tokens and stop strings."""
    given = [stop] if isinstance(stop, str) else stop or []
    ids = [each for each in given if isinstance(each, int)]
    strings = [each for each in given if isinstance(each, str)]
    if len(given) > MAX_STOPS or any(not 0 < len(each) <= MAX_STOP_LETTERS for each in strings):
        raise UserError(f"stop has at most {MAX_STOPS} entries, strings of 1 to {MAX_STOP_LETTERS} letters")
    return ids, strings


def _seed(seed: int, number: int) -> int:
    """Of one of several samples: unrelated to those of other seeds."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "little")
