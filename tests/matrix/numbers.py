"""What a family's packed rows give, against plain transformers in float32, one sequence at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from posttrain.data.packing import Example, pack
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.heads import load_reward_model
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model
from posttrain.models.lora import add_lora
from posttrain.types import Request, Sampling

BOUND = 5e-5  # nats for logprobs, score units for scores, a share of the gradient's norm for each parameter's gradient
RANK = 4
PROMPT = [5, 9, 3, 7, 11, 30, 31, 40]
BRANCHES = [[4, 8, 2], [12], [6] * 20 + [13, 14, 15]]  # the last is longer than the sliding windows
EXAMPLES = [Example(tuple(PROMPT), tuple(branch), (True,) * len(branch)) for branch in BRANCHES]


class Gaps(NamedTuple):
    """The largest differences from plain transformers, and of the sampler from the trainer."""

    logprobs: float
    gradients: float
    sampled: float


def plain_logprobs(network: Any, token_ids: Sequence[int]) -> Tensor:
    """Logprobs of all tokens but the first."""
    logits = network(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(list(token_ids))[1:, None])[:, 0]


def said_logprobs(model: LanguageModel, completions: Sequence[Sequence[int]]) -> list[list[float]]:
    """Those of each completion of `PROMPT` in one packed row, as the trainer computes them."""
    examples = [Example(tuple(PROMPT), tuple(said), (True,) * len(said)) for said in completions]
    (row,) = pack(examples, 4096)
    found: list[list[float]] = [[] for _ in examples]
    for number, logprob in zip(row.rows, model.logprobs(row).logprobs.tolist(), strict=True):
        found[number].append(logprob)
    return found


def _with_adapter(model: LanguageModel, plain: Any, whole: str = "") -> tuple[LanguageModel, Any]:
    """Both under one adapter that changes something."""
    import peft

    model = add_lora(model, RANK, whole=whole)
    plain = peft.get_peft_model(plain, model.adapter.peft_config["default"])
    ours = dict(model.adapter.named_parameters())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(ours[name].requires_grad)
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
                ours[name].copy_(parameter)
    return model, plain


def _gradient_gap(model: LanguageModel, plain: Any) -> float:
    """The largest of the parameters' gaps, each as a share of the gradient's norm."""
    ours = dict((model.adapter or model.network).named_parameters())
    gaps: list[float] = []
    for name, parameter in plain.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            assert ours[name].grad is None or not ours[name].grad.to_dense().any(), name
            continue
        assert ours[name].grad is not None, name
        gaps.append(((ours[name].grad.to_dense() - parameter.grad).norm() / parameter.grad.norm()).item())
    assert gaps
    return max(gaps)


def policy_gaps(folder: Path, *, adapter: bool) -> Gaps:
    """Of the causal language model in `folder`."""
    model: LanguageModel = load_model(str(folder), dtype=torch.float32)
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    if adapter:
        model, plain = _with_adapter(model, plain)
    (row,) = pack(EXAMPLES, 4096)
    logprobs = model.logprobs(row).logprobs
    logprobs.sum().backward()
    expected = [plain_logprobs(plain, PROMPT + branch)[len(PROMPT) - 1 :] for branch in BRANCHES]
    torch.cat(expected).sum().backward()
    ours = [[p for p, number in zip(logprobs.tolist(), row.rows, strict=True) if number == i] for i in range(3)]
    gap = max(
        abs(a - b)
        for mine, theirs in zip(ours, expected, strict=True)
        for a, b in zip(mine, theirs.tolist(), strict=True)
    )
    requests = [Request(tuple(PROMPT), Sampling(24), seed) for seed in range(3)]
    drawn = TransformersEngine(model, frozenset()).generate(requests)
    with torch.no_grad():
        again = said_logprobs(model, [completion.token_ids for completion in drawn])
    sampled = max(
        abs(a - b) for one, other in zip(drawn, again, strict=True) for a, b in zip(one.logprobs, other, strict=True)
    )
    return Gaps(gap, _gradient_gap(model, plain), sampled)


def score_gaps(folder: Path, scratch: Path, *, adapter: bool) -> Gaps:
    """Of a reward model that begins as the model in `folder`."""
    reward_model = load_reward_model(str(folder), dtype=torch.float32)
    reward_model.save(scratch, padding=0)
    plain: Any = AutoModelForSequenceClassification.from_pretrained(
        scratch, attn_implementation="eager", dtype=torch.float32
    )
    if adapter:
        reward_model.body, plain = _with_adapter(reward_model.body, plain, whole="score")
        plain.base_model.model.score.requires_grad_(True)
    (row,) = pack(EXAMPLES, 4096)
    scores = reward_model.scores(row)[:, 0]
    scores.sum().backward()
    expected = torch.cat([plain(input_ids=torch.tensor([PROMPT + BRANCHES[i]])).logits[:, 0] for i in row.examples])
    expected.sum().backward()
    return Gaps((scores - expected).abs().max().item(), _gradient_gap(reward_model.body, plain), 0.0)
