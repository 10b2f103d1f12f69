import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the extra server")

from hypothesis import given
from hypothesis import strategies as st
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response
from tinker.types import Datum, ForwardBackwardInput, ForwardBackwardRequest, ModelInput, TensorData

from posttrain.errors import UserError
from posttrain.serving.base import MISSING, PromptLogprobs
from posttrain.serving.wire import (
    decompressed,
    forward_backward_output,
    read_data,
    read_forward_backward,
    sample_response,
)
from posttrain.types import Completion, StopReason


def encoded(data, loss="cross_entropy", config=None):
    """What the SDK makes of a batch."""
    asked = ForwardBackwardInput(data=data, loss_fn=loss, loss_fn_config=config)
    request = ForwardBackwardRequest(forward_backward_input=asked, model_id="m", seq_id=3)
    return forward_backward_request_to_proto(request).SerializeToString()


def datum(tokens, **inputs):
    return Datum(model_input=ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def test_a_batch_of_the_sdk_is_read_as_it_was():
    one = datum([1, 2, 3], target_tokens=np.array([2, 3, 4]), weights=np.array([0.0, 0.5, -1.0], dtype=np.float32))
    found = read_forward_backward(encoded([one, datum([9], target_tokens=np.array([8]))], "ppo", {"beta": 0.5}))
    assert (found.model_id, found.seq_id, found.loss_fn, dict(found.loss_fn_config)) == ("m", 3, "ppo", {"beta": 0.5})
    assert not found.forward_only
    first, second = read_data(found, 1000)
    assert first.tokens == (1, 2, 3) and first.targets.tolist() == [2, 3, 4] and second.tokens == (9,)
    assert first.columns["weights"].tolist() == [0.0, 0.5, -1.0] and second.columns == {}


def test_several_targets_of_a_token_come_dense_or_sparse():
    targets, weights = np.array([[7, 8, 0], [9, 0, 0]]), np.array([[0.5, 0.5, 0], [1, 0, 0]], dtype=np.float32)
    torch = pytest.importorskip("torch")
    wide = [np.pad(each, ((0, 0), (0, 30))) for each in (targets, weights)]  # that sparse is smaller
    targets, weights = wide
    rows = [TensorData.from_torch_sparse(torch.from_numpy(each)) for each in wide]
    assert all(each.sparse_crow_indices is not None for each in rows)
    sparse = datum([1, 2], target_tokens=rows[0], weights=rows[1])
    dense = datum([1, 2], target_tokens=TensorData.from_numpy(targets), weights=TensorData.from_numpy(weights))
    for each in read_data(read_forward_backward(encoded([sparse, dense])), 1000):
        assert each.targets.tolist() == targets.tolist() and each.columns["weights"].tolist() == weights.tolist()


def test_answers_are_read_by_the_sdk():
    arrays = [np.array([-1.0, -2.5], dtype=np.float32), np.array([[-1, -2], [-3, -4]], dtype=np.float32), np.zeros(1)]
    found = deserialize_forward_backward_output(forward_backward_output(4.5, arrays))
    assert found.metrics == {"loss:sum": 4.5} and len(found.loss_fn_outputs) == 3
    for each, array in zip(found.loss_fn_outputs, arrays, strict=True):
        tensor = each["logprobs"]
        np.testing.assert_array_equal(np.array(tensor.data).reshape(tensor.shape), array)


def test_samples_are_read_by_the_sdk():
    prompt = PromptLogprobs(
        np.array([np.nan, -1.5]), np.array([[0, 0], [3, 4]]), np.array([[MISSING, MISSING], [-0.5, -1.0]])
    )
    samples = [Completion((3, 4), (-0.5, -1.0), StopReason.STOP), Completion((), (), StopReason.LENGTH)]
    found = deserialize_sample_response(sample_response(samples, prompt, with_own=True))
    assert [each.stop_reason for each in found.sequences] == ["stop", "length"]
    assert list(found.sequences[0].tokens) == [3, 4] and list(found.sequences[0].logprobs) == [-0.5, -1.0]
    assert found.prompt_logprobs == [None, -1.5]
    assert found.topk_prompt_logprobs == [None, [(3, -0.5), (4, -1.0)]]
    bare = deserialize_sample_response(sample_response(samples, prompt, with_own=False))
    assert bare.prompt_logprobs is None


def tensor(**fields):
    message = pb.ForwardBackwardRequest()
    each = message.data.add()
    each.model_input.add().encoded_text.tokens = np.zeros(2, dtype=np.int32).tobytes()
    each.loss_fn_inputs["target_tokens"].CopyFrom(pb.Tensor(dtype=pb.DTYPE_INT64, **fields))
    return message


def csr(values, crow, col, shape):
    as_bytes = [np.array(numbers, dtype=np.int64).tobytes() for numbers in (values, crow, col)]
    names = ("values", "crow_indices", "col_indices")
    return tensor(sparse_csr=pb.SparseCsr(**dict(zip(names, as_bytes, strict=True))), shape=shape)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (tensor(dense=b"123"), "no whole number"),
        (tensor(dense=bytes(16), shape=[3]), "the shape"),
        (tensor(dense=bytes(16), shape=[-1, -2]), "the shape"),
        (tensor(dense=bytes(16), shape=[1, 2, 1]), "the shape"),
        (csr([1, 2], [0, 1, 2], [0, 2], [2, 2]), "sparse matrix"),
        (csr([1, 2], [0, 1, 2], [0, -1], [2, 2]), "sparse matrix"),
        (csr([1, 2], [0, 2, 1], [0, 1], [2, 2]), "sparse matrix"),
        (csr([1, 2], [0, 3, 2], [0, 1], [2, 3]), "sparse matrix"),
        (csr([1, 2], [1, 1, 2], [0, 1], [2, 2]), "sparse matrix"),
        (csr([1, 2], [0, 1, 3], [0, 1], [2, 2]), "sparse matrix"),
        (csr([1], [0, 1, 2], [0, 1], [2, 2]), "sparse matrix"),
        (csr([1], [0, 1], [0], [2, 2]), "row offsets"),
        (csr([1], [0, 1, 1], [0], [2, 65]), "K is at most"),
        (csr([1], [0, 1, 1], [0], [2, 10**9]), "sparse tensors have 2000000000 numbers"),
        (csr([1], [0, 1, 1], [0], [2]), "row offsets"),
    ],
)
def test_tensors_that_are_none_are_refused(message, reason):
    with pytest.raises(UserError, match=reason):
        read_data(read_forward_backward(message.SerializeToString()), 1000)


def test_sparse_tensors_are_counted_before_they_are_made_dense(monkeypatch):
    """A row offset of 8 bytes is a row of 64 numbers. A loss has up to four columns."""
    message = csr([], [0] * 11, [], [10, 64])
    for name in ("weights", "advantages", "logprobs"):
        message.data[0].loss_fn_inputs[name].CopyFrom(message.data[0].loss_fn_inputs["target_tokens"])
    body = message.SerializeToString()
    assert read_data(read_forward_backward(body), 640)[0].targets.shape == (10, 64)
    monkeypatch.setattr(np, "zeros", None)
    with pytest.raises(UserError, match="may have 639 targets; its sparse tensors have 2560 numbers"):
        read_data(read_forward_backward(body), 639)


def test_other_formats_and_chunks_are_refused():
    message = tensor(dense=bytes(16))
    message.data[0].loss_fn_inputs["target_tokens"].dtype = pb.DTYPE_BFLOAT16
    with pytest.raises(UserError, match="float32 or int64"):
        read_data(read_forward_backward(message.SerializeToString()), 1000)
    message = tensor(dense=bytes(16))
    message.data[0].model_input.add().image.data = b"x"
    with pytest.raises(UserError, match="images"):
        read_data(read_forward_backward(message.SerializeToString()), 1000)
    message = pb.ForwardBackwardRequest()
    message.data.add()
    with pytest.raises(UserError, match="no target_tokens"):
        read_data(read_forward_backward(message.SerializeToString()), 1000)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error_of_the_client(body):
    for act in (lambda: read_data(read_forward_backward(body), 1000), lambda: decompressed(body, 1000)):
        try:
            act()
        except UserError:
            continue


@given(st.data())
def test_a_damaged_message_is_one_too(data):
    whole = bytearray(encoded([datum([1, 2, 3], target_tokens=np.array([2, 3, 4]), weights=np.zeros(3, np.float32))]))
    for _ in range(3):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_data(read_forward_backward(bytes(whole)), 1000)
    except UserError:
        return
