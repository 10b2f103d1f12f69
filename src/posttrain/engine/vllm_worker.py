"""vLLM worker extension that receives weights from the trainer (`engine/vllm_server.py`)."""

from typing import Any

from posttrain.engine.vllm import refresh_tied_head
from posttrain.engine.weight_channel import received


class WeightReceiver:
    """Mixed into vLLM's worker class. Every worker of a model that is split takes its part of each weight."""

    def receive_weights(self: Any, host: str, port: str, key: str) -> dict[str, int]:
        """Take all weights offered at that address (`engine/weight_channel.py`); how many there were."""
        count = 0

        def counted() -> Any:
            nonlocal count
            for name, weight in received(host, int(port), key):
                count += 1
                yield name, weight

        self.reload_weights(weights_iterator=counted())
        refresh_tied_head(self.model_runner.get_model())
        return {"weights": count}
