"""The same numbers in, the same loss out as TRL, wherever TRL has the algorithm.

TRL's losses are methods of its trainers. Each is called here on a trainer that was never set up, with a model that
answers with given logprobs, so what is compared is the loss alone. Where the two differ on purpose, `explain` says so.
"""

import os
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts, Responses, Tokens
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.irpo import IRPO
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.rollout import Rollout
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sppo import SPPO

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
trl = pytest.importorskip("trl", reason="TRL is not installed; type: pip install -e '.[test]'")

PAIRS, TOKENS = 4, 6  # T tokens: a prompt of 1, then completions of 2 to 5
CLOSE = {"rel": 1e-5, "abs": 1e-6}


class Answers(torch.nn.Module):
    """A model that answers with given logprobs of the tokens after the first, by the number that fills its input."""

    is_gradient_checkpointing = False

    def __init__(self, **by_number: Tensor) -> None:
        super().__init__()
        self.by_number = by_number

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        logprobs = self.by_number[f"ids_{int(input_ids[0, 0])}"]
        zeros = torch.zeros_like(logprobs)
        return SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())


def trainer(kind: type, **attributes: Any) -> Any:
    """A trainer of that kind with nothing but what its loss asks for."""
    found = kind.__new__(kind)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
        unwrap_model=lambda model: model,
    )
    common = {
        "accelerator": accelerator,
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
        "label_smoothing": 0.0,
        "args": SimpleNamespace(gradient_checkpointing_kwargs=None, gradient_checkpointing=False),
    }
    for name, value in {**common, **attributes}.items():
        setattr(found, name, value)
    return found


def said(seed: int, rows: int = 2 * PAIRS) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs by a policy and a reference, and which are of the completion, [rows, TOKENS - 1] each."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(TOKENS - 1) < torch.randint(2, TOKENS, (rows, 1), generator=g)
    policy, reference = (-torch.rand(rows, TOKENS - 1, generator=g, dtype=torch.float64) * 2 * mask for _ in range(2))
    return policy.requires_grad_(), reference, mask


def whole(logprobs: Tensor, mask: Tensor) -> Responses:
    return Responses(logprobs.sum(1), mask.sum(1).to(logprobs.dtype))


def sides(logprobs: Tensor, mask: Tensor) -> tuple[Responses, Responses]:
    """TRL's batch is all chosen ones, then all rejected ones."""
    chosen, rejected = (whole(*half) for half in zip(logprobs.chunk(2), mask.chunk(2), strict=True))
    return chosen, rejected


def dpo_trainer(reference: Tensor, losses: dict[str, float], beta: float) -> Any:
    return trainer(
        trl.DPOTrainer,
        model=Answers(),
        ref_model=Answers(ids_1=reference),
        ld_alpha=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        loss_types=list(losses),
        loss_weights=list(losses.values()),
        beta=beta,
        use_weighting=False,
    )


def dpo_inputs(mask: Tensor) -> dict[str, Tensor]:
    ids = torch.ones(len(mask), TOKENS, dtype=torch.long)
    completion = torch.cat([torch.zeros(len(mask), 1, dtype=torch.bool), mask], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": completion.long()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("ours", "theirs", "beta"),
    [
        (DPO(beta=0.3), {"sigmoid": 1.0}, 0.3),
        (IPO(beta=0.2, length_normalised=True), {"ipo": 1.0}, 0.2),
        (SPPO(eta=4.0), {"sppo_hard": 1.0}, 0.25),
    ],
    ids=["dpo", "ipo", "sppo"],
)
def test_pairs(ours, theirs, beta, seed):
    policy, reference, mask = said(seed)
    expected = dpo_trainer(reference, theirs, beta)._compute_loss(Answers(ids_1=policy), dpo_inputs(mask), False)
    found = ours.loss(*sides(policy, mask), reference=sides(reference, mask)).loss_B.mean()
    assert found.item() == pytest.approx(expected.item(), **CLOSE)
    torch.testing.assert_close(*(torch.autograd.grad(loss, policy)[0] for loss in (found, expected)))


@pytest.mark.parametrize("seed", range(3))
def test_dpo_with_the_likelihood_of_one_pair(seed):
    """Of several pairs TRL takes the mean over all tokens, and the paper over each response's."""
    policy, reference, mask = said(seed, rows=2)
    theirs = dpo_trainer(reference, {"sigmoid": 1.0, "sft": 0.7}, 0.3)
    expected = theirs._compute_loss(Answers(ids_1=policy), dpo_inputs(mask), False)
    found = IRPO(beta=0.3, alpha=0.7).loss(*sides(policy, mask), reference=sides(reference, mask)).loss_B.mean()
    assert found.item() == pytest.approx(expected.item(), **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_simpo(seed):
    from trl.experimental.cpo import CPOTrainer

    policy, _, mask = said(seed)
    theirs = trainer(CPOTrainer, beta=2.0, simpo_gamma=0.5, loss_type="simpo", alpha=0.0)
    expected, *_ = theirs.cpo_loss(*(r.logprob_B / r.length_B for r in sides(policy, mask)))
    found = SimPO(beta=2.0, gamma=0.5).loss(*sides(policy, mask)).loss_B
    assert found.tolist() == pytest.approx(expected.tolist(), **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_orpo(seed):
    """The odds; TRL's likelihood counts the prompt's tokens too."""
    from trl.experimental.orpo import ORPOTrainer

    policy, _, mask = said(seed)
    theirs, *_ = trainer(ORPOTrainer, beta=0.3).odds_ratio_loss(
        *(r.logprob_B / r.length_B for r in sides(policy, mask))
    )
    found = ORPO(odds_weight=0.3).loss(*sides(policy, mask))
    odds = found.loss_B - found.metrics["likelihood"]
    assert odds.tolist() == pytest.approx((-theirs).tolist(), **CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_kto(seed):
    policy, reference, mask = said(seed)
    moved, of_reference, moved_mask = said(seed + 100)
    good = torch.tensor([True, False, True, True, False, True, False, False])
    theirs = trainer(
        trl.KTOTrainer,
        model=Answers(),
        ref_model=Answers(ids_1=reference, ids_2=of_reference),
        precompute_ref_logps=False,
        calculate_KL=True,
        loss_type="kto",
        beta=0.3,
        desirable_weight=1.2,
        undesirable_weight=0.8,
    )
    inputs = dpo_inputs(mask) | {"label": good}
    inputs |= {f"KL_{name}": value for name, value in dpo_inputs(moved_mask).items()}
    inputs["KL_input_ids"] = inputs["KL_input_ids"] * 2
    expected = theirs._compute_loss(Answers(ids_1=policy, ids_2=moved), inputs, False)
    divergence = max(0.0, (moved - of_reference).sum(1).mean().item())
    ours = KTO(beta=0.3, good_weight=1.2, bad_weight=0.8)
    found = ours.loss_of_each(
        whole(policy, mask), good, reference=whole(reference, mask), divergence=divergence
    ).loss_B.mean()
    assert found.item() == pytest.approx(expected.item(), **CLOSE)


def test_the_divergence_of_kto_is_both_above_and_at_zero_in_these():
    differences = [(moved - anchor).sum(1).mean().item() for moved, anchor, _ in map(said, range(100, 104))]
    assert min(differences) < 0 < max(differences)


GROUP = 4


def grpo_inputs(mask: Tensor, policy: Tensor) -> dict[str, Tensor]:
    ids = torch.ones(len(mask), TOKENS - 1, dtype=torch.long)
    noise = torch.randn(policy.shape, generator=torch.Generator().manual_seed(1))
    old = policy.detach() + 0.4 * noise * mask
    shared = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids}
    return shared | {
        "completion_mask": mask.long(),
        "old_per_token_logps": old,
        "old_logps": (old * mask).sum(1),
        "num_items_in_batch": mask.sum(),
    }


GROUPS = torch.arange(2 * PAIRS) // GROUP  # of each completion


def group_rewards() -> Tensor:
    g = torch.Generator().manual_seed(2)
    return torch.rand(2 * PAIRS // GROUP, GROUP, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (GRPO(kl_coefficient=0.0), {"loss_type": "grpo"}),
        (GRPO(kl_coefficient=0.04, clip_high=0.28), {"loss_type": "grpo", "beta": 0.04, "epsilon_high": 0.28}),
        (DrGRPO(), {"loss_type": "dr_grpo"}),
        (DAPO(), {"loss_type": "dapo", "epsilon_high": 0.28}),
        (
            GSPO(clip_low=0.1, clip_high=0.15),
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.15},
        ),
    ],
    ids=["grpo", "grpo with KL", "dr-grpo", "dapo", "gspo"],
)
def test_groups(ours, theirs):
    policy, reference, mask = said(0)
    inputs = grpo_inputs(mask, policy)
    row_N = mask.nonzero()[:, 0]
    advantages_N = ours.advantages(Rollout(group_rewards().flatten(), GROUPS, row_N)).advantages_N
    of_each = torch.stack([advantages_N[row_N == row][0] for row in range(len(mask))])
    settings = {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token", **theirs}
    peer = trainer(
        trl.GRPOTrainer,
        model=Answers(),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=TOKENS - 1,
        _get_per_token_logps_and_entropies=lambda *args, **options: (policy, torch.zeros_like(policy), None),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        **settings,
    )
    expected = peer._compute_loss(Answers(), inputs | {"advantages": of_each, "ref_per_token_logps": reference})
    found_N, metrics = ours.loss(
        Tokens(
            policy[mask],
            old_N=inputs["old_per_token_logps"][mask],
            advantages_N=advantages_N,
            branch_N=row_N,
            reference_N=reference[mask],
        )
    )
    found = ours.reduce(found_N, row_N.bincount()[row_N], Counts(len(mask), int(mask.sum()), TOKENS - 1))
    assert metrics["clip_fraction"].sum() > 0  # the clip is compared too
    assert found.item() == pytest.approx(expected.item(), **CLOSE)
    torch.testing.assert_close(*(torch.autograd.grad(loss, policy)[0] for loss in (found, expected)))


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
def test_rloo(kl_coefficient):
    policy, reference, mask = said(0)
    inputs = grpo_inputs(mask, policy)
    row_N = mask.nonzero()[:, 0]
    old = inputs["old_per_token_logps"]
    ours = RLOO(kl_coefficient=kl_coefficient)
    rollout = Rollout(group_rewards().flatten(), GROUPS, row_N, sampler_N=old[mask], reference_N=reference[mask])
    advantages_N = ours.advantages(rollout).advantages_N
    # TRL's own lines: rewards less the KL, and the mean of the group's others
    rewards = group_rewards() - kl_coefficient * ((old - reference) * mask).sum(1).view(-1, GROUP)
    others = (rewards.sum(1, keepdim=True) - rewards) / (GROUP - 1)
    of_each = (rewards - others).flatten()
    assert advantages_N.tolist() == pytest.approx(of_each[row_N].tolist())
    peer = trainer(
        trl.RLOOTrainer,
        model=Answers(),
        epsilon_low=0.2,
        epsilon_high=0.2,
        _get_per_token_logps_and_entropies=lambda *args, **options: (policy, torch.zeros_like(policy), None),
    )
    expected = peer._compute_loss(Answers(), inputs | {"advantages": of_each})
    found_N, metrics = ours.loss(Tokens(policy[mask], old_N=old[mask], advantages_N=advantages_N, branch_N=row_N))
    found = ours.reduce(found_N, row_N.bincount()[row_N], Counts(len(mask), int(mask.sum())))
    assert metrics["clip_fraction"].sum() > 0
    assert found.item() == pytest.approx(expected.item(), **CLOSE)
    torch.testing.assert_close(*(torch.autograd.grad(loss, policy)[0] for loss in (found, expected)))
