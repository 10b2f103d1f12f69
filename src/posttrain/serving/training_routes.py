"""Routes of models: created, trained, saved, loaded."""

import asyncio
import contextlib
import json
import secrets
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posttrain.errors import CheckpointError, UserError
from posttrain.serving import bodies, checkpoints
from posttrain.serving.base import Adapter
from posttrain.serving.bodies import Json
from posttrain.serving.checkpoints import Address
from posttrain.serving.guard import Owner, Upload
from posttrain.serving.operations import readable
from posttrain.serving.run import Entry
from posttrain.serving.services import Served, Services
from posttrain.serving.trainer import AdamParams
from posttrain.serving.wire import PROTOBUF, decompressed, read_forward_backward

router = APIRouter(prefix="/api/v1")


def _future(request_id: str) -> Json:
    return {"request_id": request_id, "model_id": request_id.rpartition(":")[0]}


def _accepted(served: Services, owner: str, model_id: str, seq: int | None, kind: str, content: Any) -> Json:
    """Accept a request: its body, or what is written as JSON."""
    run = served.runs.get(owner, model_id)
    if not seq:
        raise UserError("seq_id must be 1 or more")
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return _future(served.runs.accept(run, seq, Entry(kind, body)))


@router.post("/create_model")
def create_model(body: bodies.CreateModel, owner: Owner, served: Served) -> Json:
    """Make a model: a fresh adapter."""
    served.check_base(body.base_model)
    session_id, asked = served.sessions.check(owner, body.session_id), body.lora_config or bodies.LoraConfig()
    if asked.rank > served.limits.max_rank:
        raise UserError(f"an adapter has a rank of at most {served.limits.max_rank} here; got {asked.rank}")
    if asked.seed is None:
        asked.seed = secrets.randbits(31)
    model_id = f"{session_id}:train:{body.model_seq_id}"
    return _future(served.runs.create(model_id, owner, Adapter(**asked.model_dump()), Entry("create", b"{}")))


@router.post("/get_info")
def get_info(body: bodies.OfModel, owner: Owner, served: Served) -> Json:
    """What a model is."""
    run, name = served.runs.get(owner, body.model_id), served.base.name
    return {
        "type": "get_info",
        "model_id": body.model_id,
        "model_data": {"arch": served.base.model.network.config.model_type, "model_name": name, "tokenizer_id": name},
        "is_lora": True,
        "lora_rank": run.record.adapter.rank,
        "model_name": name,
    }


@router.post("/unload_model")
def unload_model(body: bodies.OfModel, owner: Owner, served: Served) -> Json:
    """End a model; its named checkpoints stay."""
    return _future(served.runs.unload(owner, body.model_id))


@router.post("/forward_backward")
async def forward_backward(request: Request, owner: Owner, served: Served) -> Response:
    """Add the gradient of a batch, or with `forward_only` compute its loss."""
    if PROTOBUF not in request.headers.get("content-type", ""):
        return JSONResponse({"error": f"forward_backward takes {PROTOBUF}; use a newer SDK"}, 415)
    body = await request.body()
    zstd = request.headers.get("content-encoding", "") == "zstd"
    upload = request.state.upload if zstd else None
    async with served.reading.setdefault(owner, asyncio.Lock()):  # one body at a time of each client, or many slow all
        return JSONResponse(await run_in_threadpool(_forward_backward, body, upload, owner, served))


def _forward_backward(body: bytes, compressed: Upload | None, owner: str, served: Services) -> Json:
    if compressed is not None:
        body = decompressed(body, compressed)
    asked = read_forward_backward(body)
    kind = "forward" if asked.forward_only else "forward_backward"
    return _accepted(served, owner, asked.model_id, asked.seq_id, kind, body)


@router.post("/optim_step")
def optim_step(body: bodies.OptimStep, owner: Owner, served: Served) -> Json:
    """One step of AdamW."""
    known = AdamParams.__dataclass_fields__
    if wrong := sorted(body.adam_params.keys() - known.keys()):
        raise UserError(f"adam_params has no '{wrong[0][:80]}'; it has: {', '.join(known)}")
    adam = AdamParams(**body.adam_params)
    return _accepted(served, owner, body.model_id, body.seq_id, "optim_step", asdict(adam))


@router.post("/save_weights")
def save_weights(body: bodies.Save, owner: Owner, served: Served) -> Json:
    """Save weights and the optimiser's state under a name."""
    name = body.path or f"{body.seq_id:06d}"
    asked = body.model_dump(include={"seq_id", "ttl_seconds", "overwrite"}) | {"name": name}
    return _accepted(served, owner, body.model_id, body.seq_id, "save", asked)


@router.post("/save_weights_for_sampler")
def save_weights_for_sampler(body: bodies.Save, owner: Owner, served: Served) -> Json:
    """Save weights to sample from: under a name, or for a new sampling session."""
    if not body.path and body.sampling_session_seq_id is None:
        raise UserError("save_weights_for_sampler needs a path or a sampling_session_seq_id")
    asked = body.model_dump(include={"seq_id", "sampling_session_seq_id", "ttl_seconds"}) | {"name": body.path}
    return _accepted(served, owner, body.model_id, body.seq_id, "save_for_sampler", asked)


@router.post("/load_weights")
def load_weights(body: bodies.LoadWeights, owner: Owner, served: Served) -> Json:
    """Load a checkpoint: onto a model, or as the first request of a new one, which has the checkpoint's adapter."""
    asked = {"path": body.path, "optimizer": body.optimizer}
    if body.model_id is not None:
        return _accepted(served, owner, body.model_id, body.seq_id, "load", asked)
    if body.session_id is None or body.model_seq_id is None:
        raise UserError("load_weights needs model_id and seq_id, or session_id and model_seq_id")
    model_id = f"{served.sessions.check(owner, body.session_id)}:train:{body.model_seq_id}"
    adapter = Adapter(**readable(body.path, owner, served).state["adapter"])
    return _future(served.runs.create(model_id, owner, adapter, Entry("load", json.dumps(asked).encode())))


@router.post("/weights_info")
def weights_info(body: bodies.WeightsInfo, owner: Owner, served: Served) -> Json:
    """What is needed to make a model for a checkpoint."""
    adapter = asdict(Adapter(**readable(body.tinker_path, owner, served).state["adapter"]))
    trained = {name: adapter[name] for name in ("train_unembed", "train_mlp", "train_attn")}
    return {"base_model": served.base.name, "is_lora": True, "lora_rank": adapter["rank"], **trained}


@router.get("/training_runs/{model_id}/checkpoints")
def list_checkpoints(model_id: str, owner: Owner, served: Served) -> Json:
    """A model's checkpoints."""
    served.runs.record(owner, model_id)
    model, found = served.models / checkpoints.folder_name(model_id), list[Json]()
    for kind, name in checkpoints.names(model):
        saved = None
        with contextlib.suppress(CheckpointError):  # a damaged one: who loads it is told
            saved = checkpoints.read(model / kind / name)
        if saved is not None:
            found.append(
                {
                    "checkpoint_id": f"{kind}/{name}",
                    "checkpoint_type": "training" if kind == "weights" else "sampler",
                    "time": saved.state["time"],
                    "tinker_path": str(Address(model_id, kind, name)),
                    "size_bytes": sum(file.stat().st_size for file in saved.path.iterdir()),
                    "expires_at": saved.state["expires"],
                }
            )
    return {"checkpoints": found}


@router.delete("/training_runs/{model_id}/checkpoints/{kind}/{name}", status_code=204)
def delete_checkpoint(model_id: str, kind: str, name: str, owner: Owner, served: Served) -> None:
    """Delete a checkpoint."""
    served.runs.record(owner, model_id)
    checkpoints.delete(Address.of(f"tinker://{model_id}/{kind}/{name}").folder(served.models))
