"""Protobuf messages of the Tinker SDK, as numbers and back. All tensors are little-endian and raw."""

import io
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import zstandard
from google.protobuf.message import DecodeError
from starlette.exceptions import HTTPException
from tinker.proto import tinker_public_pb2 as pb

from posttrain.errors import UserError
from posttrain.serving.base import PromptLogprobs
from posttrain.serving.guard import Upload
from posttrain.serving.losses import MAX_TARGETS, Datum
from posttrain.types import Completion, StopReason

PROTOBUF = "application/x-protobuf"
MOST_PARTS = 2**17  # of a message; a datum with four columns has about 40
COLUMNS = 4  # of a loss: targets, weights, advantages, logprobs


def read_data(message: Any, most_tokens: int) -> list[Datum]:
    """The data of a request for a gradient; sparse tensors may have as many numbers as `COLUMNS` of `most_tokens`."""
    sparse = (
        math.prod(tensor.shape)
        for datum in message.data
        for tensor in datum.loss_fn_inputs.values()
        if tensor.WhichOneof("encoding") == "sparse_csr"
    )
    # before any is made dense, which may need 64 times its memory
    if (total := sum(max(0, size) for size in sparse)) > COLUMNS * most_tokens:
        raise UserError(f"a request may have {most_tokens} targets; its sparse tensors have {total} numbers")
    return [_datum(number, datum) for number, datum in enumerate(message.data)]


def decompressed(body: bytes, held: Upload) -> bytes:
    """The contents of a zstandard frame, which the request holds from now on; raises as `Upload.grow`."""
    try:
        size = zstandard.frame_content_size(body)  # -1 if the frame does not say it
        held.grow(size if size >= 0 else held.most)
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(io.BytesIO(body)) as reader:
            found = reader.read(held.most + 1)
    except zstandard.ZstdError as error:
        raise UserError(f"the body is no zstandard frame: {error}") from error
    held.grow(len(found))
    return found


def read_forward_backward(body: bytes) -> Any:
    """A request for a gradient, its data still encoded, if it has no more than `MOST_PARTS`; raises `UserError`."""
    try:
        _check_parts(body)
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(body)
    except (DecodeError, IndexError) as error:
        raise UserError("the body is no ForwardBackwardRequest") from error
    return message


def _check_parts(body: bytes) -> None:
    """Count fields of messages, at every depth, and numbers of lists, without parsing them."""
    parts = 0
    messages: list[tuple[Any, int, int]] = [(pb.ForwardBackwardRequest.DESCRIPTOR, 0, len(body))]
    while messages:
        descriptor, at, end = messages.pop()
        while at < end:
            tag, at = _varint(body, at)
            parts += 1
            kind = tag & 7
            if kind == 2:
                size, at = _varint(body, at)
                field: Any = descriptor.fields_by_number.get(tag >> 3)
                if field is not None and field.type == field.TYPE_MESSAGE:
                    messages.append((field.message_type, at, at + size))
                elif field is not None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                    parts += size
                at += size
            elif kind == 0:
                _, at = _varint(body, at)
            else:
                at += {1: 8, 5: 4}.get(kind, len(body) + 1)
            if at > end:
                raise IndexError
            if parts > MOST_PARTS:
                raise HTTPException(
                    413, f"a request may have {MOST_PARTS} fields and sizes of tensors; send smaller batches"
                )


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 63:
            return value, at


def _datum(number: int, message: Any) -> Datum:
    tokens: list[int] = []
    for chunk in message.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise UserError(f"datum {number} has a chunk that is no text; images and audio are not served")
        tokens += _numbers(chunk.encoded_text.tokens, np.dtype("<i4"), f"datum {number}").tolist()
    inputs = {str(name): _tensor(f"datum {number}: {name}", tensor) for name, tensor in message.loss_fn_inputs.items()}
    if "target_tokens" not in inputs:
        raise UserError(f"datum {number} has no target_tokens in its loss_fn_inputs")
    targets = inputs.pop("target_tokens").astype(np.int64)
    return Datum(tuple(tokens), targets, {name: column.astype(np.float32) for name, column in inputs.items()})


_DTYPES = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8"), pb.DTYPE_INT32: np.dtype("<i4")}


def _numbers(raw: bytes, dtype: np.dtype[Any], what: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise UserError(f"{what}: {len(raw)} bytes are no whole number of {dtype.name}")
    return np.frombuffer(raw, dtype=dtype)


def _tensor(what: str, message: Any) -> np.ndarray:
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise UserError(f"{what} must be float32 or int64")
    shape = [int(size) for size in message.shape]
    if message.WhichOneof("encoding") == "sparse_csr":
        return _dense(what, message.sparse_csr, dtype, shape)
    values = _numbers(message.dense, dtype, what)
    shape = shape or [len(values)]
    if min(shape) < 0 or len(shape) > 2 or int(np.prod(shape)) != len(values):
        raise UserError(f"{what} has {len(values)} numbers and the shape {shape}")
    return values.reshape(shape)


def _dense(what: str, message: Any, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """A matrix in compressed sparse rows, with 0 where it has no entry."""
    values = _numbers(message.values, dtype, what)
    crow, col = (_numbers(raw, np.dtype("<i8"), what) for raw in (message.crow_indices, message.col_indices))
    if len(shape) != 2 or len(crow) != shape[0] + 1 or not 0 < shape[1] <= MAX_TARGETS:
        raise UserError(f"{what} has {len(crow)} row offsets and the shape {list(shape)}; K is at most {MAX_TARGETS}")
    counts = np.diff(crow)
    whole = crow[0] == 0 and crow[-1] == len(values) == len(col) and (counts >= 0).all() and (counts <= shape[1]).all()
    if not whole or not ((col >= 0) & (col < shape[1])).all():
        raise UserError(f"{what}: its row offsets and columns are not those of a sparse matrix")
    dense = np.zeros(shape, dtype)
    dense[np.repeat(np.arange(shape[0]), counts), col] = values
    return dense


def forward_backward_output(loss: float, logprobs: Sequence[np.ndarray]) -> bytes:
    """The answer to a forward pass: `loss:sum`, and the logprobs of each datum's targets."""
    answer = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    answer.metrics["loss:sum"] = loss
    for trailing, group in groupby(logprobs, key=lambda array: array.shape[1:]):
        arrays = [np.ascontiguousarray(array, dtype="<f4") for array in group]
        record = answer.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(arrays))
        offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8")
        record.fields["logprobs"].CopyFrom(
            pb.BatchedTensor(
                data=b"".join(array.tobytes() for array in arrays),
                offsets=offsets.tobytes(),
                dtype=pb.DTYPE_FLOAT32,
                trailing_shape=trailing,
            )
        )
    return answer.SerializeToString()


def sample_response(sequences: Sequence[Completion], prompt: PromptLogprobs | None, *, with_own: bool) -> bytes:
    """The answer to a request for samples."""
    answer = pb.SampleResponse()
    for each in sequences:
        answer.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if each.stop_reason is StopReason.STOP else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(each.token_ids, dtype="<i4").tobytes(),
            logprobs=np.asarray(each.logprobs, dtype="<f4").tobytes(),
        )
    if prompt is not None and with_own:
        answer.prompt_logprobs = np.ascontiguousarray(prompt.own, dtype="<f4").tobytes()
    if prompt is not None and prompt.top_tokens is not None and prompt.top_logprobs is not None:
        top = answer.topk_prompt_logprobs  # whose message has had two names
        top.length, top.k = prompt.top_tokens.shape
        top.token_ids = np.ascontiguousarray(prompt.top_tokens, dtype="<i4").tobytes()
        top.logprobs = np.ascontiguousarray(prompt.top_logprobs, dtype="<f4").tobytes()
    return answer.SerializeToString()
