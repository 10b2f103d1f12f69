"""Item 6: an update reaches the sampler, with all weights and with an adapter, and a small one is not lost."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from posttrain.engine.policy import Policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError, as_typed
from posttrain.models.language_model import LanguageModel
from posttrain.models.lora import add_lora
from posttrain.models.reference import AdapterOff
from posttrain.recipes.verify.item import GAP_MAX, LOGPROB, MOVED, SMALL_STEPS, Item, violations
from posttrain.recipes.verify.numerics import packed_logprobs
from posttrain.recipes.verify.subject import Subject, batch_of, longest
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.supervised import NLL, supervised_batch
from posttrain.types import Group

SMALL = 1e-6  # a usual learning rate
SIDE = 256  # of the part of a weight matrix on which small steps are repeated


def weight_update(subject: Subject) -> Item:
    """Sample, update, sample again with the same seeds; with all weights, then with an adapter."""
    found: list[str] = []
    model = subject.policy.model
    before = subject.sample(subject.policy)
    optimizer = MasterAdamW(model.trainable())
    small = _small_updates(model, optimizer, batch_of(before), found)
    _update(model, optimizer, batch_of(before), lr=1e-3)
    _look_again(subject, subject.policy, before, "all weights", found)
    del optimizer  # its memory is needed for the next one
    adapter = _adapter(subject, found)
    return violations("weight update", found, f"the next samples come from the new weights; {adapter}; {small}")


def _update(model: LanguageModel, optimizer: MasterAdamW, batch: Batch, *, lr: float) -> None:
    learner = LocalLearner(model, optimizer, microbatch_tokens=2 * longest(batch))
    learner.forward_backward(supervised_batch(batch.examples), NLL())
    learner.optim_step({POLICY: lr})


def _look_again(subject: Subject, policy: Policy, before: Sequence[Group], what: str, found: list[str]) -> None:
    """The same requests get other samples than before, and the trainer's new logprobs are the sampler's."""
    after = subject.sample(policy)
    said, said_before = ([row.trajectory.token_ids for group in of for row in group.rows] for of in (after, before))
    if said == said_before:
        found.append(f"{what}: the sampler emits the same as before the update")
    batch = batch_of(after)
    sampler = torch.tensor([value for values in batch.tokens["sampler_logprobs"] for value in values])
    gap = (packed_logprobs(policy.model, batch, 1.0).cpu() - sampler).abs().max().item()
    if gap > GAP_MAX[policy.model.dtype]:
        found.append(f"{what}: after the update, the logprobs of sampler and trainer are {gap:.2g} apart")


def _adapter(subject: Subject, found: list[str]) -> str:
    """The same with a fresh adapter, whose base has to stay as it was."""
    exact = subject.exact
    if exact.model.adapter is not None:
        return "the model is an adapter, so that is what was updated"
    before = subject.sample(exact)
    batch = batch_of(before)
    base = packed_logprobs(exact.model, batch, 1.0)
    try:
        model = add_lora(exact.model, subject.config.lora_rank, seed=subject.config.seed)
    except UserError as error:
        return f"an adapter's updates were not checked: {as_typed(str(error))}"
    adapted = replace(exact, model=model, engine=TransformersEngine(model, exact.chat.stop_ids))
    if (packed_logprobs(model, batch, 1.0) - base).abs().max() > LOGPROB:
        found.append("a fresh adapter changes the policy")
    optimizer = MasterAdamW(model.trainable())
    for _ in range(2):  # the first update reaches B alone, which starts at 0
        _update(model, optimizer, batch, lr=1e-2)
    _look_again(subject, adapted, before, "adapter", found)
    if (packed_logprobs(AdapterOff(model), batch, 1.0) - base).abs().max() > LOGPROB:
        found.append("with the adapter off, the policy is not its base")
    return f"so they do with an adapter of rank {subject.config.lora_rank}, whose base stays the reference"


def _small_updates(model: LanguageModel, optimizer: MasterAdamW, batch: Batch, found: list[str]) -> str:
    """One update of 1e-6 on the float32 masters; many on a part of a matrix kept in bfloat16."""
    name, master = next((n, m) for n, m in reversed(optimizer.named_masters().items()) if m.dim() == 2)
    start = master.detach().clone()
    _update(model, optimizer, batch, lr=SMALL)
    moved = _share(master.detach() != start)
    if moved < MOVED:
        found.append(f"an update of {SMALL:g} changed {moved:.0%} of the float32 masters of '{name}'")
    part = start[:SIDE, :SIDE].bfloat16()
    ours, plain = nn.Parameter(part.clone()), nn.Parameter(part.clone())
    masters, naive = MasterAdamW([(name, ours)]), torch.optim.AdamW([plain], lr=SMALL, weight_decay=0.0)
    for _ in range(SMALL_STEPS):
        with masters.collecting():
            (ours.sum() + plain.sum()).backward()
        masters.step(SMALL)
        naive.step()
        naive.zero_grad()
    kept, lost = _share(ours.detach() != part), _share(plain.detach() != part)
    if kept < MOVED:
        found.append(f"{SMALL_STEPS} updates of {SMALL:g} changed {kept:.0%} of the bfloat16 weights of '{name}'")
    return (
        f"an update of {SMALL:g} changes {moved:.0%} of the float32 masters of '{name}', and {SMALL_STEPS} of them "
        f"{kept:.0%} of its weights in bfloat16 ({lost:.0%} without masters)"
    )


def _share(changed: Tensor) -> float:
    return changed.float().mean().item()
