"""The application: routes that belong to no model, results, errors.

All routes are those of the Tinker SDK, under /api/v1.
"""

import json
from collections.abc import Collection

from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from posttrain.errors import CheckpointError, UserError
from posttrain.serving import sampling_routes, training_routes
from posttrain.serving.answers import answer, application
from posttrain.serving.bodies import Heartbeat, Json, RetrieveFuture
from posttrain.serving.futures import NotKept
from posttrain.serving.guard import Owner
from posttrain.serving.runs import ERROR
from posttrain.serving.services import Served, Services

HOLD_SECONDS = 20.0  # for which a request for a result is held; the SDK waits for 45

router = APIRouter(prefix="/api/v1")


def create_app(services: Services, *, hosts: Collection[str] | None = ()) -> FastAPI:
    """The application over a server's parts, which it starts and closes.

    Args:
        services: the parts.
        hosts: names of this machine, besides localhost and addresses; None for any.
    """
    routers = (router, training_routes.router, sampling_routes.router)
    app = application("posttrain server", services, routers, hosts)
    app.add_exception_handler(CheckpointError, answer(400))
    app.add_exception_handler(NotKept, answer(410, "this result is not kept any more"))
    return app


@router.get("/healthz")
def healthz() -> Json:
    """Whether the server runs."""
    return {"status": "ok"}


@router.post("/client/config")
@router.post("/client/dynamic_config")
def client_config(served: Served) -> Json:
    """Settings of the SDK: keys are sent as they are, and a model can be created by loading."""
    most = min(served.limits.pending_per_key // 2, 2000)
    return {
        "pjwt_auth_enabled": False,
        "create_model_via_load_weights": True,
        "sample_max_concurrent_requests": most,
        "fwdbwd_max_chunk_len": served.limits.data_per_request,
        "parallel_fwdbwd_chunks": False,  # the first would come last, and the others wait for it
        "sample_enable_stuck_detection": False,  # a CPU may take longer than the SDK's patience
    }


@router.post("/create_session")
def create_session(owner: Owner, served: Served) -> Json:
    """Begin a session."""
    return {"type": "create_session", "session_id": served.sessions.create(owner)}


@router.post("/session_heartbeat")
def session_heartbeat(body: Heartbeat, served: Served) -> Json:
    """A client is there."""
    served.sessions.hear(body.session_id)
    return {"type": "session_heartbeat", "status": "accepted"}


@router.post("/telemetry")
def telemetry() -> Json:
    """What the SDK tells of itself is not kept."""
    return {"status": "accepted"}


@router.post("/sessions/{session_id}/finish")
def finish(session_id: str, owner: Owner, served: Served) -> Json:
    """A client has ended. Its models may be used again by their checkpoints."""
    served.sessions.check(owner, session_id)
    served.runs.end_session(owner, session_id)
    served.sessions.hear(session_id, 0.0)
    return {"status": "accepted"}


@router.get("/get_server_capabilities")
def capabilities(served: Served) -> Json:
    """The model that is served."""
    base = served.base
    model = {"model_name": base.name, "max_context_length": base.context, "trainable": True, "sampleable": True}
    return {"supported_models": [model]}


@router.post("/retrieve_future")
async def retrieve_future(body: RetrieveFuture, owner: Owner, served: Served) -> Response:
    """A result, held back until it is there; after a while the client is told to ask again."""
    await run_in_threadpool(_check_result, body.request_id, owner, served)
    result = await served.futures.retrieve(body.request_id, HOLD_SECONDS)
    if result is None:
        again = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return JSONResponse(again)
    if result.kind == ERROR:
        return JSONResponse(json.loads(result.body))
    return Response(result.body, media_type=result.kind)


def _check_result(request_id: str, owner: str, served: Services) -> None:
    """That it is the owner's; the result of a model's request is looked for on disk.

    Raises:
        UserError: it is another's, or there never was such a request.
        NotKept: it is not kept.
    """
    subject, _, number = request_id.rpartition(":")
    if not number.isdecimal() or len(number) > 19:
        raise UserError(f"there is no request '{request_id[:80]}'")
    if ":train:" in subject:
        if not served.runs.result(owner, subject, int(number)):
            raise NotKept(request_id)
    else:
        served.samplers.get(owner, subject)
