"""Plain requests, whose order and moments a test decides, and what an uninterrupted server makes of some."""

import time

import httpx
import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as pb

from posttrain.serving import checkpoints
from posttrain.training.checkpoint import load_tensors
from posttrain.training.local_learner import MASTERS
from tests.serving.serving import KEY, NAME, serving

ADAM = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}


def batch(model_id, seq, *, shift=0, forward_only=False, weight=None):
    """A request of two sequences."""
    message = pb.ForwardBackwardRequest(model_id=model_id, seq_id=seq, loss_fn="cross_entropy")
    message.forward_only = forward_only
    for first in (5 + shift, 20 + shift):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.arange(first, first + 4, dtype=np.int32).tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype, targets.dense = pb.DTYPE_INT64, np.arange(first + 1, first + 5, dtype=np.int64).tobytes()
        targets.shape.append(4)
        if weight is not None:
            weights = datum.loss_fn_inputs["weights"]
            weights.dtype, weights.dense = pb.DTYPE_FLOAT32, np.full(4, weight, dtype=np.float32).tobytes()
            weights.shape.append(4)
    return message.SerializeToString()


class Client:
    """Plain requests, whose order and moments a test decides."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": KEY}, timeout=60)

    def post(self, route, **body):
        answer = self.http.post(route, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, *, rank=4, seed=1, session=None, number=0):
        session = session or self.post("create_session")["session_id"]
        lora = {"rank": rank, "seed": seed}
        asked = self.post("create_model", session_id=session, model_seq_id=number, base_model=NAME, lora_config=lora)
        return self.result(asked["request_id"])["model_id"]

    def gradient(self, model, seq, **settings):
        body = batch(model, seq, **settings)
        answer = self.http.post("forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"})
        assert answer.status_code == 200, answer.text
        return answer.json()["request_id"]

    def step(self, model, seq):
        return self.post("optim_step", model_id=model, seq_id=seq, adam_params=ADAM)["request_id"]

    def save(self, model, seq, name):
        return self.post("save_weights", model_id=model, seq_id=seq, path=name)["request_id"]

    def raw(self, request_id):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self.http.post("retrieve_future", json={"request_id": request_id})
            assert answer.status_code == 200, answer.text
            if "protobuf" in answer.headers["content-type"]:
                return answer.content
            if answer.json().get("type") != "try_again":
                return answer.json()
        raise AssertionError(f"no result of {request_id}")

    def result(self, request_id):
        found = self.raw(request_id)
        assert isinstance(found, bytes) or "error" not in found, found
        return found


def uninterrupted(base, store, steps=4):
    """Weights after some steps, the third of which is on two batches."""
    with serving(base, store) as (url, services):
        client = Client(url)
        model, seq = client.create(), 0
        for step in range(steps):
            for shift in (0, 3) if step == 2 else (step,):
                seq += 1
                client.gradient(model, seq, shift=shift)
            seq += 1
            client.step(model, seq)
        path = client.result(client.save(model, seq + 1, "end"))["path"]
        return weights(services, path)


def weights(services, path):
    saved = checkpoints.read(checkpoints.Address.of(path).folder(services.models))
    return load_tensors(saved.path / MASTERS)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
