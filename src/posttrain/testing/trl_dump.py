"""Write what TRL's `GRPOTrainer` samples, scores and trains on, for `posttrain verify --import`.

    trainer = GRPOTrainer(...)
    record_rollouts(trainer, "rollouts.jsonl")
    trainer.train()

Four methods of this one trainer are wrapped; what they compute stays as it is. Written for TRL 1.16.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posttrain.errors import UserError

_AGGREGATION = {
    "grpo": "sequence_mean",
    "bnpo": "micro_batch_token_mean",
    "dr_grpo": "constant",
    "dapo": "token_mean",
    "luspo": "sequence_sum",
}
_ADVANTAGE = {"group": "mean_std", "none": "mean", "batch": "mean_batch_std"}


def record_rollouts(trainer: Any, path: str | Path, *, updates: int = 4) -> None:
    """Record the first `updates` updates of a `GRPOTrainer` of one process into a jsonl file, while it trains.

    Raises `UserError` for a trainer of several processes, whose losses no single one of them knows.
    """
    if trainer.accelerator.num_processes > 1:
        raise UserError(f"rollouts are recorded of one process; this run has {trainer.accelerator.num_processes}")
    path = Path(path)
    path.write_text(json.dumps(_header(trainer)) + "\n", encoding="utf-8")
    state: dict[str, Any] = {"batch": -1, "loss": 0.0, "part": 0}

    def rewards(call: Callable[..., Any], *given: Any) -> Any:
        found = call(*given)
        state["rewards"] = (found * trainer.reward_weights.to(found.device)).nansum(dim=1)
        return found

    def generated(call: Callable[..., Any], *given: Any) -> Any:
        found = call(*given)
        state["batch"] += 1
        places = torch.arange(len(found["completion_ids"]), device=found["completion_ids"].device)
        # they are shuffled and cut into micro-batches with the rest
        return {**found, "rewards_of_rows": state["rewards"], "groups_of_rows": places // trainer.num_generations}

    def logprobs(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = call(*given, **named)
        state["logprobs"] = found[0].detach()
        return found

    def loss(call: Callable[..., Any], model: Any, inputs: dict[str, Any]) -> Any:
        found = call(model, inputs)
        update = trainer.state.global_step
        if model.training and update < updates:
            state["loss"] += found.item()
            lines = _rows(trainer, inputs, state, update)
            state["part"] += 1
            if state["part"] == trainer.current_gradient_accumulation_steps:
                lines += [{"update": update, "loss": state["loss"]}] * _has_one_denominator(trainer)
                state["part"], state["loss"] = 0, 0.0
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        return found

    _wrap(trainer, "_calculate_rewards", rewards)
    _wrap(trainer, "_generate_and_score_completions", generated)
    _wrap(trainer, "_get_per_token_logps_and_entropies", logprobs)
    _wrap(trainer, "_compute_loss", loss)


def _wrap(trainer: Any, name: str, around: Callable[..., Any]) -> None:
    call = getattr(trainer, name)
    setattr(trainer, name, lambda *given, **named: around(call, *given, **named))


def _has_one_denominator(trainer: Any) -> bool:
    """Whether an update's loss follows from its own rows: DAPO's tokens are those of a whole batch of rollouts."""
    one = trainer.args.steps_per_generation == trainer.current_gradient_accumulation_steps
    return one or trainer.loss_type != "dapo"


def _header(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    sampling = {name: getattr(args, name, None) for name in ("temperature", "top_p", "top_k", "min_p")}
    sampling["repetition_penalty"] = args.repetition_penalty
    sampling |= {key: value for key, value in (args.generation_kwargs or {}).items() if key in sampling}
    # terms and weights that a clipped surrogate does not have
    other = args.delta is not None or trainer.top_entropy_quantile < 1 or trainer.off_policy_mask_threshold is not None
    other |= trainer._entropy_bonus_enabled or trainer.aux_loss_enabled or trainer.use_vllm
    known = trainer.loss_type in _AGGREGATION and not other
    header = {
        "format": "posttrain-rollouts-1",
        "source": "trl",
        "surrogate": trainer.importance_sampling_level if known else "other",
        "aggregation": _AGGREGATION.get(trainer.loss_type, ""),
        "advantage": _ADVANTAGE.get(trainer.scale_rewards, ""),
        "clip_low": trainer.epsilon_low,
        "clip_high": trainer.epsilon_high,
        "kl_coefficient": trainer.beta,
        "stop_tokens": trainer.eos_token_ids,
        "max_new_tokens": trainer.max_completion_length,
    }
    return {**header, **{key: value for key, value in sampling.items() if value is not None}}


def _rows(trainer: Any, inputs: dict[str, Any], state: dict[str, Any], update: int) -> list[dict[str, Any]]:
    tools = inputs.get("tool_mask")
    epoch = trainer._step // trainer.args.steps_per_generation % trainer.num_iterations
    columns = {"sampler_logprobs": "sampling_per_token_logps", "old_logprobs": "old_per_token_logps"}
    columns = {**columns, "reference_logprobs": "ref_per_token_logps"}
    rows: list[dict[str, Any]] = []
    for number, said in enumerate(inputs["completion_ids"]):
        mask = inputs["completion_mask"][number] * (1 if tools is None else tools[number])
        prompt = inputs["prompt_ids"][number][inputs["prompt_mask"][number].bool()].tolist()
        # without padding: up to the first stop token, the last token that is no padding, and all that the mask covers
        stops = torch.isin(said, torch.tensor(trainer.eos_token_ids, device=said.device)).nonzero().flatten().tolist()
        real = (said != trainer._tokenizer.pad_token_id).nonzero().flatten().tolist()
        end = 1 + max(
            [*(stops[:1] if stops and tools is None else real), *mask.nonzero().flatten().tolist()], default=0
        )
        row = {
            "tokens": [*prompt, *said[:end].tolist()],
            "prompt_length": len(prompt),
            "mask": mask[:end].tolist(),
            "trainer_logprobs": state["logprobs"][number][:end].tolist(),
            "advantages": inputs["advantages"][number].item(),
            "reward": inputs["rewards_of_rows"][number].item(),
            "group": f"{state['batch']}.{inputs['groups_of_rows'][number].item()}",
            "batch": state["batch"],
            "update": update,
            "micro_batch": state["part"],
            "epoch": epoch,
        }
        row |= {ours: inputs[theirs][number][:end].tolist() for ours, theirs in columns.items() if theirs in inputs}
        rows.append(row if tools is None else {**row, "sampled": tools[number][:end].tolist()})
    return rows
