"""The application: sessions, sampling, results. All routes are those of the Tinker SDK, under /api/v1."""

import hashlib
import secrets
from collections.abc import Collection

from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from posttrain.errors import CheckpointError, UserError
from posttrain.serving import training_routes
from posttrain.serving.base import Done, Job, Samples
from posttrain.serving.bodies import CreateSamplingSession, Heartbeat, Json, NotServed, RetrieveFuture, Sample
from posttrain.serving.checkpoints import Address, Sampler
from posttrain.serving.guard import Owner, answer, application
from posttrain.serving.losses import UNPUBLISHED, check_tokens
from posttrain.serving.operations import readable
from posttrain.serving.run import Entry
from posttrain.serving.runs import ERROR, SERVER_FAILED, failure
from posttrain.serving.services import Served, Services
from posttrain.serving.wire import PROTOBUF, sample_response
from posttrain.types import Request, Sampling

HOLD_SECONDS = 20.0  # for which a request for a result is held; the SDK waits for 45
MAX_STOPS, MAX_STOP_LETTERS = 64, 256

router = APIRouter(prefix="/api/v1")


def create_app(services: Services, *, hosts: Collection[str] | None = ()) -> FastAPI:
    """The application over a server's parts, which it starts and closes; `hosts` as in `application`."""
    app = application(services, (router, training_routes.router), hosts)
    app.add_exception_handler(CheckpointError, answer(400))
    return app


@router.get("/healthz")
def healthz() -> Json:
    """Whether the server runs."""
    return {"status": "ok"}


@router.post("/client/config")
@router.post("/client/dynamic_config")
def client_config(served: Served) -> Json:
    """Settings of the SDK: keys are sent as they are, and a model can be created by loading."""
    return {
        "pjwt_auth_enabled": False,
        "create_model_via_load_weights": True,
        "sample_max_concurrent_requests": min(served.limits.pending_per_key // 2, 2000),
        "fwdbwd_max_chunk_len": served.limits.data_per_request,
        "parallel_fwdbwd_chunks": False,  # the first would come last, and the others wait for it
        "sample_enable_stuck_detection": False,  # a CPU may take longer than the SDK's patience
    }


@router.post("/telemetry")
def telemetry() -> Json:
    """What the SDK tells of itself is not kept."""
    return {"status": "accepted"}


@router.get("/get_server_capabilities")
def capabilities(served: Served) -> Json:
    """The model that is served."""
    name, context = served.base.name, served.base.model.context
    model = {"model_name": name, "max_context_length": context, "trainable": True, "sampleable": True}
    return {"supported_models": [model]}


@router.post("/create_session")
def create_session(owner: Owner, served: Served) -> Json:
    """Begin a session."""
    return {"type": "create_session", "session_id": served.sessions.create(owner)}


@router.post("/session_heartbeat")
def session_heartbeat(body: Heartbeat, served: Served) -> Json:
    """A client is there."""
    served.sessions.hear(body.session_id)
    return {"type": "session_heartbeat", "status": "accepted"}


@router.post("/sessions/{session_id}/finish")
def finish(session_id: str, owner: Owner, served: Served) -> Json:
    """A client has ended. Its models may be used again by their checkpoints."""
    served.sessions.check(owner, session_id)
    served.runs.end_session(owner, session_id)
    served.sessions.hear(session_id, 0.0)
    return {"status": "accepted"}


@router.post("/create_sampling_session")
def create_sampling_session(body: CreateSamplingSession, owner: Owner, served: Served) -> Json:
    """Begin to sample from the base model, or from a checkpoint."""
    session_id, folder = served.sessions.check(owner, body.session_id), ""
    if body.model_path:
        readable(body.model_path, owner, served)
        folder = Address.of(body.model_path).folder(served.models).relative_to(served.models).as_posix()
    elif body.base_model:
        served.check_base(body.base_model)
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
    accepted = JSONResponse({"request_id": request_id, "sample_sequence_ids": ids})
    if served.futures.known(request_id):
        return accepted
    served.pending.enter(owner, body.num_samples)

    def done(found: Samples | Exception) -> None:
        served.pending.leave(owner, body.num_samples)
        if isinstance(found, Exception):
            result = failure(found)
            if result is SERVER_FAILED:
                served.report(f"{request_id}: {type(found).__name__}: {found}")
        else:
            result = Entry(PROTOBUF, sample_response(*found, with_own=bool(body.prompt_logprobs)))
        served.futures.finish(request_id, result)

    if not served.futures.open(request_id):  # the same request came twice at once
        served.pending.leave(owner, body.num_samples)
        return accepted
    try:
        job = _job(body, sampler, served, done)
    except UserError as error:
        done(error)
    else:
        served.decoder.add(job)  # not as a task of the worker: each is followed by a step of its own
        served.worker.wake()
    return accepted


def _job(body: Sample, sampler: Sampler, served: Services, done: Done) -> Job:
    """The request for the decoder; raises `UserError` for what cannot be sampled."""
    base, params, context = served.base, body.sampling_params, served.base.model.context
    if refused := [name for name in NotServed.model_fields if getattr(body, name)]:
        why = f" with the loss stable_reinforce: {UNPUBLISHED}" if refused[0] == "record_stability_info" else ""
        raise UserError(f"{refused[0]} is not served{why}")
    if any(chunk.type != "encoded_text" for chunk in body.prompt.chunks):
        raise UserError("the prompt has a chunk that is no text; images and audio are not served")
    tokens = tuple(token for chunk in body.prompt.chunks for token in chunk.tokens)
    if not 0 < len(tokens) < context:
        raise UserError(f"a prompt has 1 to {context - 1} tokens, so that one can follow; got {len(tokens)}")
    check_tokens(tokens, base.vocabulary, "the prompt")
    longest = min(params.max_tokens or context, context - len(tokens))
    if (len(tokens) + longest) * body.num_samples > (most := served.limits.tokens_per_request):
        raise UserError(f"prompt and samples may have {most} tokens together; ask for fewer samples, or shorter ones")
    given = [params.stop] if isinstance(params.stop, str) else params.stop or []
    ids = [each for each in given if isinstance(each, int)]
    strings = tuple(each for each in given if isinstance(each, str))
    if len(given) > MAX_STOPS or any(not 0 < len(each) <= MAX_STOP_LETTERS for each in strings):
        raise UserError(f"stop has at most {MAX_STOPS} entries, strings of 1 to {MAX_STOP_LETTERS} letters")
    check_tokens(ids, base.vocabulary, "stop")
    if body.topk_prompt_logprobs > base.vocabulary:
        raise UserError(f"topk_prompt_logprobs is above the vocabulary's {base.vocabulary}")
    sampling = Sampling(longest, params.temperature, max(params.top_k, 0), params.top_p, strings)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    # unrelated to those of other seeds
    seeds = [hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8] for number in range(body.num_samples)]
    return Job(
        served.samplers.saved(sampler.folder) if sampler.folder else "",
        [Request(tokens, sampling, int.from_bytes(each, "little")) for each in seeds],
        base.stop_ids | set(ids),
        bool(body.prompt_logprobs),
        body.topk_prompt_logprobs,
        done,
        sampler.owner,
    )


@router.post("/retrieve_future")
async def retrieve_future(body: RetrieveFuture, owner: Owner, served: Served) -> Response:
    """A result, held back until it is there; after a while the client is told to ask again."""
    await run_in_threadpool(_check_result, body.request_id, owner, served)
    result = await served.futures.retrieve(body.request_id, HOLD_SECONDS)
    if result is None:
        return JSONResponse({"type": "try_again", "request_id": body.request_id, "queue_state": "active"})
    return Response(result.body, media_type="application/json" if result.kind == ERROR else result.kind)


def _check_result(request_id: str, owner: str, served: Services) -> None:
    """Raise `UserError` if it is not the owner's; the result of a model's request is looked for on disk."""
    subject, _, number = request_id.rpartition(":")
    if not number.isdecimal() or len(number) > 19:
        raise UserError(f"there is no request '{request_id[:80]}'")
    if ":train:" not in subject:
        served.samplers.get(owner, subject)
    else:
        served.runs.look_for(owner, subject, int(number))
