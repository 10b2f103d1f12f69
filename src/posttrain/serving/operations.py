"""The requests of a model, by kind: what each does to a trainer, and what the client is told."""

import json
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter
from posttrain.serving.checkpoints import UNNAMED, Address, Sampler
from posttrain.serving.files import checked_name, read_json
from posttrain.serving.losses import Datum, Loss, check_data, loss_of
from posttrain.serving.run import Entry, Run
from posttrain.serving.trainer import AdamParams, Output, Trainer
from posttrain.serving.wire import PROTOBUF, forward_backward_output, read_data, read_forward_backward
from posttrain.training.checkpoint import save_tensors
from posttrain.training.local_learner import MASTERS

if TYPE_CHECKING:
    from posttrain.serving.services import Services

Slices = Generator[None, None, Entry]
"""Work that is done in slices, others' between them, and the answer at its end."""


def told(**content: Any) -> Entry:
    """What a client is told, in JSON."""
    return Entry("application/json", json.dumps(content).encode())


def unloaded(model_id: str) -> Entry:
    """What is told of a model that has ended."""
    return told(type="unload_model", model_id=model_id)


@dataclass(frozen=True)
class Batch:
    """What a request for a gradient, or with `backward` off for the loss alone, contains."""

    data: list[Datum]
    loss: Loss
    backward: bool = True


def read_batch(body: bytes, services: "Services") -> Batch:
    """The batch of a request; raises `UserError` if the model cannot train on it."""
    request, limits, base = read_forward_backward(body), services.limits, services.base
    if len(request.data) > limits.data_per_request:
        raise UserError(f"a request may have {limits.data_per_request} datums; this one has {len(request.data)}")
    data = read_data(request, limits.tokens_per_request)
    check_data(data, vocabulary=base.vocabulary, context=base.model.context, most_tokens=limits.tokens_per_request)
    loss = loss_of(request.loss_fn, dict(request.loss_fn_config), set(data[0].columns), data[0].targets.ndim)
    return Batch(data, loss, not request.forward_only)


def forward_backward(trainer: Trainer, body: bytes, model: Run, services: "Services") -> Slices:
    """Add the gradient of a batch; with `forward_only` only the loss is computed."""
    batch = read_batch(body, services)
    return answer_of((yield from trainer.slices(batch.data, batch.loss, backward=batch.backward)))


def answer_of(output: Output) -> Entry:
    """What a client is told of a forward pass."""
    return Entry(PROTOBUF, forward_backward_output(output.loss, output.logprobs))


def save(trainer: Trainer, body: bytes, model: Run, services: "Services") -> Entry:
    """Save weights and moments under a name, with a peft folder of the adapter."""
    asked = json.loads(body)

    def write(folder: Path) -> None:
        trainer.learner.save(folder)
        trainer.model.save(folder)

    return told(type="save_weights", path=_save("weights", write, asked, model, services))


def save_for_sampler(trainer: Trainer, body: bytes, model: Run, services: "Services") -> Entry:
    """Save the weights to sample from: under a name, with a peft folder, or for one sampling session."""
    asked = json.loads(body)

    def write(folder: Path) -> None:
        save_tensors(folder / MASTERS, trainer.weights())
        if asked["name"]:
            trainer.model.save(folder)

    if asked["name"]:
        return told(type="save_weights_for_sampler", path=_save("sampler_weights", write, asked, model, services))
    number = str(int(asked["sampling_session_seq_id"]))
    root = model.folder / UNNAMED / number
    checkpoints.save(root, write, {"adapter": asdict(model.record.adapter)}, ttl_seconds=None, overwrite=True)
    kept = sorted((model.folder / UNNAMED).iterdir(), key=lambda path: int(path.name))
    for path in kept[: -services.limits.unnamed_per_model]:
        shutil.rmtree(path)
    sampler_id = f"{model.record.model_id.split(':')[0]}:sample:{number}"
    folder = root.relative_to(services.models).as_posix()
    services.samplers.add(Sampler(sampler_id, model.record.owner, services.base.name, folder=folder))
    return told(type="save_weights_for_sampler", sampling_session_id=sampler_id)


def _save(
    kind: checkpoints.Kind,
    write: Callable[[Path], None],
    asked: Mapping[str, Any],
    model: Run,
    services: "Services",
) -> str:
    """Save under the name that was asked for; the checkpoint's address."""
    address = Address(model.record.model_id, kind, checked_name(asked["name"]))
    most = services.limits.checkpoints_per_model
    checkpoints.tidy(model.folder)
    if len({*checkpoints.names(model.folder)} - {(kind, address.name)}) >= most:
        raise UserError(f"a model may have {most} checkpoints; delete one")
    about = {"adapter": asdict(model.record.adapter), "base_model": services.base.name}
    if "seq_id" in asked:  # not in requests that an older version has accepted
        about["request"] = asked["seq_id"]
    folder, lasting = address.folder(services.models), asked.get("ttl_seconds")
    checkpoints.save(folder, write, about, ttl_seconds=lasting, overwrite=bool(asked.get("overwrite")))
    return str(address)


def load(trainer: Trainer, body: bytes, model: Run, services: "Services") -> Entry:
    """Take the weights of a checkpoint, and its moments if asked; the gradient is forgotten."""
    asked = json.loads(body)
    found = readable(asked["path"], model.record.owner, services)
    if asked["optimizer"] and Address.of(asked["path"]).kind != "weights":
        raise UserError("sampler_weights have no state of an optimiser; load a checkpoint of save_state")
    if Adapter(**found.state["adapter"]).shape != (mine := model.record.adapter).shape:
        raise UserError(
            f"the checkpoint's adapter is {found.state['adapter']}, the model's {asdict(mine)}; make a model of the "
            "checkpoint's rank"
        )
    trainer.restore(found.path, optimizer=asked["optimizer"])
    return told(type="load_weights", path=asked["path"], model_id=model.record.model_id)


def readable(path: str, owner: str, services: "Services") -> checkpoints.Checkpoint:
    """A checkpoint that the owner may read, of this base model; raises `UserError` if there is none."""
    folder = Address.of(path).folder(services.models)
    record = read_json(folder.parents[1] / "model.json")
    found = checkpoints.read(folder) if record and record["owner"] == owner else None
    if found is None:
        raise UserError(f"there is no checkpoint '{path[:200]}'")
    if found.state["base_model"] != services.base.name:
        raise UserError(f"'{path}' is on '{found.state['base_model']}', and this server has '{services.base.name}'")
    return found


OPERATIONS: Mapping[str, Callable[[Trainer, bytes, Run, "Services"], Entry | Slices]] = {
    # the model is there as soon as it is loaded
    "create": lambda trainer, body, model, services: told(type="create_model", model_id=model.record.model_id),
    "unload": lambda trainer, body, model, services: unloaded(model.record.model_id),
    "load": load,
    "forward": forward_backward,
    "forward_backward": forward_backward,
    # one step of AdamW
    "optim_step": lambda trainer, body, model, services: told(
        metrics=trainer.optim_step(AdamParams(**json.loads(body)))
    ),
    "save": save,
    "save_for_sampler": save_for_sampler,
}
ENDS = "unload"  # the model ends with it
STATE = ("load", "optim_step")  # those that change weights or moments
CHANGES = (*STATE, "forward_backward")  # or the gradient
JOINT = ("forward", "forward_backward")  # those that may be computed in one pass with those of other models
