"""The requests of a model, by kind: what each does to a trainer, and what the client is told."""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter, Base
from posttrain.serving.checkpoints import Address
from posttrain.serving.datum import Datum, check_data
from posttrain.serving.files import checked_name, read_json
from posttrain.serving.journal import Entry
from posttrain.serving.limits import Limits
from posttrain.serving.losses import Loss, loss_of
from posttrain.serving.run import Run
from posttrain.serving.samplers import UNNAMED, Sampler, Samplers
from posttrain.serving.trainer import AdamParams, Output, Trainer
from posttrain.serving.wire import PROTOBUF, forward_backward_output, read_data, read_forward_backward
from posttrain.training.checkpoint import save_tensors
from posttrain.training.local_learner import MASTERS

JSON = "application/json"


@dataclass(frozen=True)
class Context:
    """What requests need besides their model."""

    base: Base
    models: Path
    samplers: Samplers
    limits: Limits
    microbatch_tokens: int


Slices = Generator[None, None, Entry]
"""Work that is done in slices, others' between them, and the answer at its end."""


def _json(**content: Any) -> Entry:
    return Entry(JSON, json.dumps(content).encode())


def create(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """The model is there as soon as it is loaded."""
    return _json(type="create_model", model_id=model.record.model_id)


def unload(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """The model ends after this."""
    return unloaded(model.record.model_id)


def unloaded(model_id: str) -> Entry:
    """What is told of a model that has ended."""
    return _json(type="unload_model", model_id=model_id)


@dataclass(frozen=True)
class Batch:
    """What a request for a gradient, or with `backward` off for the loss alone, contains."""

    data: list[Datum]
    loss: Loss
    backward: bool

    @property
    def tokens(self) -> int:
        """Of all inputs."""
        return sum(len(datum.tokens) for datum in self.data)


def read_batch(body: bytes, context: Context) -> Batch:
    """The batch of a request; raises `UserError` if the model cannot train on it."""
    request, limits = read_forward_backward(body), context.limits
    if len(request.data) > limits.data_per_request:
        raise UserError(f"a request may have {limits.data_per_request} datums; this one has {len(request.data)}")
    data = read_data(request, limits.tokens_per_request)
    base = context.base
    check_data(data, vocabulary=base.vocabulary, context=base.context, most_tokens=limits.tokens_per_request)
    loss = loss_of(request.loss_fn, dict(request.loss_fn_config), set(data[0].columns), data[0].targets.ndim)
    return Batch(data, loss, not request.forward_only)


def forward_backward(trainer: Trainer, body: bytes, model: Run, context: Context) -> Slices:
    """Add the gradient of a batch; with `forward_only` only the loss is computed."""
    batch = read_batch(body, context)
    return answer_of((yield from trainer.slices(batch.data, batch.loss, backward=batch.backward)))


def answer_of(output: Output) -> Entry:
    """What a client is told of a forward pass."""
    return Entry(PROTOBUF, forward_backward_output(output.loss, output.logprobs))


def optim_step(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """One step of AdamW."""
    asked = json.loads(body)
    return _json(metrics=trainer.optim_step(AdamParams(**asked)))


def save(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """Save weights and moments under a name, with a peft folder of the adapter."""
    asked = json.loads(body)
    address = Address(model.record.model_id, "weights", checked_name(asked["name"], "a checkpoint"))

    def write(folder: Path) -> None:
        trainer.learner.save(folder)
        trainer.model.save(folder)

    _save(address, write, asked, model, context)
    return _json(type="save_weights", path=str(address))


def save_for_sampler(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """Save the weights to sample from: under a name, or for one sampling session."""
    asked = json.loads(body)

    def write(folder: Path) -> None:
        save_tensors(folder / MASTERS, trainer.weights())

    if asked["name"]:
        address = Address(model.record.model_id, "sampler_weights", checked_name(asked["name"], "a checkpoint"))

        def write_both(folder: Path) -> None:
            write(folder)
            trainer.model.save(folder)

        _save(address, write_both, asked, model, context)
        return _json(type="save_weights_for_sampler", path=str(address))
    number = str(int(asked["sampling_session_seq_id"]))
    root = model.folder / UNNAMED / number
    checkpoints.save(root, write, {"adapter": asdict(model.adapter)}, ttl_seconds=None, overwrite=True)
    context.samplers.prune(model.folder, context.limits.unnamed_per_model)
    sampler_id = f"{model.record.model_id.split(':')[0]}:sample:{number}"
    folder = root.relative_to(context.models).as_posix()
    context.samplers.add(Sampler(sampler_id, model.record.owner, context.base.name, folder=folder))
    return _json(type="save_weights_for_sampler", sampling_session_id=sampler_id)


def _save(
    address: Address, write: Callable[[Path], None], asked: Mapping[str, Any], model: Run, context: Context
) -> None:
    checkpoints.tidy(model.folder, address.kind)
    named = {(kind, name) for kind in checkpoints.KINDS for name in checkpoints.names(model.folder, kind)}
    if len(named - {(address.kind, address.name)}) >= context.limits.checkpoints_per_model:
        raise UserError(f"a model may have {context.limits.checkpoints_per_model} checkpoints; delete one")
    about = {"adapter": asdict(model.adapter), "base_model": context.base.name}
    if "seq_id" in asked:  # not in requests that an older version has accepted
        about["request"] = asked["seq_id"]
    folder, lasting = address.folder(context.models), asked.get("ttl_seconds")
    checkpoints.save(folder, write, about, ttl_seconds=lasting, overwrite=bool(asked.get("overwrite")))


def load(trainer: Trainer, body: bytes, model: Run, context: Context) -> Entry:
    """Take the weights of a checkpoint, and its moments if asked; the gradient is forgotten."""
    asked = json.loads(body)
    found = readable(asked["path"], model.record.owner, context)
    if asked["optimizer"] and Address.of(asked["path"]).kind != "weights":
        raise UserError("sampler_weights have no state of an optimiser; load a checkpoint of save_state")
    if Adapter.of(found.about["adapter"]).shape != model.adapter.shape:
        raise UserError(
            f"the checkpoint's adapter is {found.about['adapter']}, the model's {asdict(model.adapter)}; make a model "
            "of the checkpoint's rank"
        )
    trainer.restore(found.folder, optimizer=asked["optimizer"])
    return _json(type="load_weights", path=asked["path"], model_id=model.record.model_id)


def readable(path: str, owner: str, context: Context) -> checkpoints.Saved:
    """A checkpoint that the owner may read.

    Raises:
        UserError: there is none, it is another's, or it is of another base model.
    """
    address = Address.of(path)
    record = read_json(address.folder(context.models).parents[1] / "model.json")
    found = checkpoints.read(address.folder(context.models)) if record and record["owner"] == owner else None
    if found is None:
        raise UserError(f"there is no checkpoint '{path[:200]}'")
    if found.about["base_model"] != context.base.name:
        raise UserError(f"'{path}' is on '{found.about['base_model']}', and this server has '{context.base.name}'")
    return found


@dataclass(frozen=True)
class Operation:
    """A kind of request.

    Attributes:
        run: does it.
        state: whether it changes weights or moments.
        gradient: whether it changes the gradient.
        ends: whether the model ends with it.
        joint: whether it may be computed in one pass with those of other models.
    """

    run: Callable[[Trainer, bytes, Run, Context], Entry | Slices]
    state: bool = False
    gradient: bool = False
    ends: bool = False
    joint: bool = False


_OPERATIONS: Mapping[str, Operation] = {
    "create": Operation(create),
    "unload": Operation(unload, ends=True),
    "load": Operation(load, state=True),
    "forward": Operation(forward_backward, joint=True),
    "forward_backward": Operation(forward_backward, gradient=True, joint=True),
    "optim_step": Operation(optim_step, state=True),
    "save": Operation(save),
    "save_for_sampler": Operation(save_for_sampler),
}


def operation_of(kind: str) -> Operation:
    """The operation of a request's kind."""
    return _OPERATIONS[kind]
