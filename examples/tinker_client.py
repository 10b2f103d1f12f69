"""Supervised fine-tuning and reinforcement learning by the Tinker SDK, against `posttrain server`.

    pip install 'posttrain[server]'
    posttrain server                                    # in another terminal
    python examples/tinker_client.py [URL [MODEL]]

Only `base_url` and the key are this server's. The model learns to answer with a digit: first from demonstrations, then
from a reward, the share of even digits. A minute on two CPU cores with the packaged model.
"""

import sys
from typing import Any

import tinker
from tinker import types

URL, MODEL = "http://localhost:8000", "HuggingFaceTB/SmolLM2-135M-Instruct"


def datum(prompt: list[int], completion: list[int], **columns: list[float]) -> types.Datum:
    """A sequence whose token i predicts token i + 1; `columns` are numbers of the completion, 0 on the prompt."""
    tokens, before = prompt + completion, [0.0] * (len(prompt) - 1)
    inputs: dict[str, Any] = {name: [*before, *numbers] for name, numbers in columns.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:], **inputs}
    )


def main(
    url: str = URL, model: str = MODEL, *, key: str = "tml-local", steps: int = 8, samples: int = 16
) -> list[float]:
    """Train, and return the mean reward of each step of reinforcement learning."""
    service = tinker.ServiceClient(base_url=url, api_key=key)
    training = service.create_lora_training_client(base_model=model, rank=16, seed=0).result()
    tokenizer = training.get_tokenizer()
    prompt = tokenizer.encode("A digit: ")
    digits = [tokenizer.encode(str(digit))[-1:] for digit in range(10)]
    adam = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)

    for step in range(steps):
        found = training.forward_backward([datum(prompt, digit, weights=[0.1]) for digit in digits], "cross_entropy")
        training.optim_step(adam).result()
        print(f"demonstrations {step}: loss {found.result().metrics['loss:sum']:.3f}")

    rewards: list[float] = []
    for step in range(steps):
        sampler = training.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=1)
        sampled = sampler.sample(types.ModelInput.from_ints(prompt), samples, params).result().sequences
        given = [float(list(each.tokens) in digits[::2]) for each in sampled]
        rewards.append(sum(given) / samples)
        batch = [
            datum(
                prompt, list(each.tokens), logprobs=list(each.logprobs), advantages=[(reward - rewards[-1]) / samples]
            )
            for each, reward in zip(sampled, given, strict=True)
        ]
        training.forward_backward(batch, "importance_sampling")
        training.optim_step(adam).result()
        print(f"rewards {step}: {rewards[-1]:.3f} of the digits are even")
    print(training.save_state("last", overwrite=True).result().path)
    return rewards


if __name__ == "__main__":
    main(*sys.argv[1:])
