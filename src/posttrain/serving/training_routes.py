"""Routes of models: created, trained, saved, loaded."""

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
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter
from posttrain.serving.bodies import (
    CreateModel,
    Json,
    LoadWeights,
    LoraConfig,
    OfModel,
    OptimStep,
    SaveForSampler,
    SaveWeights,
    WeightsInfo,
)
from posttrain.serving.checkpoints import Address
from posttrain.serving.guard import Held, Owner
from posttrain.serving.journal import Entry
from posttrain.serving.operations import readable
from posttrain.serving.services import Served, Services
from posttrain.serving.trainer import AdamParams
from posttrain.serving.wire import PROTOBUF, decompressed, read_forward_backward

router = APIRouter(prefix="/api/v1")


def _entry(kind: str, **content: Any) -> Entry:
    return Entry(kind, json.dumps(content).encode())


def _future(request_id: str) -> Json:
    return {"request_id": request_id, "model_id": request_id.rpartition(":")[0]}


def _check_base(name: str, served: Services) -> None:
    if name != served.base.name:
        raise UserError(f"this server has the model '{served.base.name}'; got '{name[:80]}'")


@router.post("/create_model")
def create_model(body: CreateModel, owner: Owner, served: Served) -> Json:
    """Make a model: a fresh adapter."""
    _check_base(body.base_model, served)
    session_id, asked = served.sessions.check(owner, body.session_id), body.lora_config or LoraConfig()
    if asked.rank > served.limits.max_rank:
        raise UserError(f"an adapter has a rank of at most {served.limits.max_rank} here; got {asked.rank}")
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    adapter = Adapter(asked.rank, seed, asked.train_mlp, asked.train_attn, asked.train_unembed)
    model_id = f"{session_id}:train:{body.model_seq_id}"
    return _future(served.runs.create(model_id, owner, adapter, _entry("create")))


@router.post("/get_info")
def get_info(body: OfModel, owner: Owner, served: Served) -> Json:
    """What a model is."""
    run, name = served.runs.get(owner, body.model_id), served.base.name
    return {
        "type": "get_info",
        "model_id": body.model_id,
        "model_data": {"arch": served.base.model.network.config.model_type, "model_name": name, "tokenizer_id": name},
        "is_lora": True,
        "lora_rank": run.adapter.rank,
        "model_name": name,
    }


@router.post("/unload_model")
def unload_model(body: OfModel, owner: Owner, served: Served) -> Json:
    """End a model; its named checkpoints stay."""
    return _future(served.runs.unload(owner, body.model_id))


@router.post("/forward_backward")
async def forward_backward(request: Request, owner: Owner, served: Served) -> Response:
    """Add the gradient of a batch, or with `forward_only` compute its loss."""
    if PROTOBUF not in request.headers.get("content-type", ""):
        return JSONResponse({"error": f"forward_backward takes {PROTOBUF}; use a newer SDK"}, 415)
    body = await request.body()
    zstd = request.headers.get("content-encoding", "") == "zstd"
    return JSONResponse(
        await run_in_threadpool(_forward_backward, body, request.state.held if zstd else None, owner, served)
    )


def _forward_backward(body: bytes, compressed: Held | None, owner: str, served: Services) -> Json:
    if compressed is not None:
        body = decompressed(body, compressed)
    asked = read_forward_backward(body)
    run = served.runs.get(owner, asked.model_id)
    kind = "forward" if asked.forward_only else "forward_backward"
    return _future(served.runs.accept(run, _seq(asked.seq_id), Entry(kind, body)))


def _seq(number: int | None) -> int:
    if not number:
        raise UserError("seq_id must be 1 or more")
    return number


@router.post("/optim_step")
def optim_step(body: OptimStep, owner: Owner, served: Served) -> Json:
    """One step of AdamW."""
    run = served.runs.get(owner, body.model_id)
    known = AdamParams.__dataclass_fields__
    if wrong := sorted(body.adam_params.keys() - known.keys()):
        raise UserError(f"adam_params has no '{wrong[0][:80]}'; it has: {', '.join(known)}")
    adam = AdamParams(**body.adam_params)
    return _future(served.runs.accept(run, _seq(body.seq_id), _entry("optim_step", **asdict(adam))))


@router.post("/save_weights")
def save_weights(body: SaveWeights, owner: Owner, served: Served) -> Json:
    """Save weights and the optimiser's state under a name."""
    run, seq = served.runs.get(owner, body.model_id), _seq(body.seq_id)
    name = body.path or f"{seq:06d}"
    asked = {"seq_id": seq, "name": name, "ttl_seconds": body.ttl_seconds, "overwrite": body.overwrite}
    return _future(served.runs.accept(run, seq, _entry("save", **asked)))


@router.post("/save_weights_for_sampler")
def save_weights_for_sampler(body: SaveForSampler, owner: Owner, served: Served) -> Json:
    """Save weights to sample from: under a name, or for a new sampling session."""
    run, seq = served.runs.get(owner, body.model_id), _seq(body.seq_id)
    if not body.path and body.sampling_session_seq_id is None:
        raise UserError("save_weights_for_sampler needs a path or a sampling_session_seq_id")
    asked = {
        "seq_id": seq,
        "name": body.path,
        "sampling_session_seq_id": body.sampling_session_seq_id,
        "ttl_seconds": body.ttl_seconds,
    }
    return _future(served.runs.accept(run, seq, _entry("save_for_sampler", **asked)))


@router.post("/load_weights")
def load_weights(body: LoadWeights, owner: Owner, served: Served) -> Json:
    """Load a checkpoint: onto a model, or as the first request of a new one, which has the checkpoint's adapter."""
    entry = _entry("load", path=body.path, optimizer=body.optimizer)
    if body.model_id is not None:
        return _future(served.runs.accept(served.runs.get(owner, body.model_id), _seq(body.seq_id), entry))
    if body.session_id is None or body.model_seq_id is None:
        raise UserError("load_weights needs model_id and seq_id, or session_id and model_seq_id")
    session_id = served.sessions.check(owner, body.session_id)
    adapter = Adapter.of(readable(body.path, owner, served.context).about["adapter"])
    return _future(served.runs.create(f"{session_id}:train:{body.model_seq_id}", owner, adapter, entry))


@router.post("/weights_info")
def weights_info(body: WeightsInfo, owner: Owner, served: Served) -> Json:
    """What is needed to make a model for a checkpoint."""
    adapter = Adapter.of(readable(body.tinker_path, owner, served.context).about["adapter"])
    found = {"base_model": served.base.name, "is_lora": True, "lora_rank": adapter.rank}
    trained = ("train_unembed", "train_mlp", "train_attn")
    return found | {name: getattr(adapter, name) for name in trained}


@router.get("/training_runs/{model_id}/checkpoints")
def list_checkpoints(model_id: str, owner: Owner, served: Served) -> Json:
    """A model's checkpoints."""
    model = _folder(model_id, owner, served)
    found: list[Json] = []
    for kind in checkpoints.KINDS:
        for name in checkpoints.names(model, kind):
            with contextlib.suppress(CheckpointError):  # a damaged one: who loads it is told
                saved = checkpoints.read(model / kind / name)
                if saved is None:
                    continue
                found.append(
                    {
                        "checkpoint_id": f"{kind}/{name}",
                        "checkpoint_type": "training" if kind == "weights" else "sampler",
                        "time": saved.about["time"],
                        "tinker_path": str(Address(model_id, kind, name)),
                        "size_bytes": sum(file.stat().st_size for file in saved.folder.iterdir()),
                        "expires_at": saved.about["expires"],
                    }
                )
    return {"checkpoints": found}


@router.delete("/training_runs/{model_id}/checkpoints/{kind}/{name}", status_code=204)
def delete_checkpoint(model_id: str, kind: str, name: str, owner: Owner, served: Served) -> None:
    """Delete a checkpoint."""
    _folder(model_id, owner, served)
    checkpoints.delete(Address.of(f"tinker://{model_id}/{kind}/{name}").folder(served.context.models))


def _folder(model_id: str, owner: str, served: Services) -> Any:
    """The folder of a model of the owner, ended or not."""
    served.runs.record(owner, model_id)
    return served.context.models / checkpoints.folder_name(model_id)
