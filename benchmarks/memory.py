"""Whether memory grows: resident memory over many updates, and its slope.

    python benchmarks/memory.py --model DIR --steps 200

Every step is a whole one of reinforcement learning on reasoning-gym's sums, at whatever lengths the policy writes. The
slope is a least-squares line through the second half of the steps, in MB per step, with its 95% interval.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from posttrain.algorithms.grpo import GRPO
from posttrain.data import load_tasks
from posttrain.engine.policy import load_policy
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.rewards import parse_rewards
from posttrain.runs.environment import peak_gb
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, policy_batch
from posttrain.types import Sampling

PAGE = 4096


def resident_mb() -> float:
    """Memory that this process has now, in MB (10^6 bytes)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--completions", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--microbatch-tokens", type=int, default=1024)
    args = parser.parse_args()

    policy = load_policy(args.model)
    optimizer = MasterAdamW(policy.model.trainable())
    learner = LocalLearner(policy.model, optimizer, microbatch_tokens=args.microbatch_tokens)
    sampled, learned = GRPO(), GRPO(kl_coefficient=0.0)  # the first keeps every group, whatever it earned
    environment = ScoredEnvironment(parse_rewards("gym=1.0"))
    tasks = load_tasks("gym:chain_sum", limit=args.prompts * args.steps)
    held: list[float] = []
    for step in range(args.steps):
        groups = sample_groups(
            environment,
            tasks[step * args.prompts : (step + 1) * args.prompts],
            Players(policy.engine, policy.chat, Sampling(args.max_new_tokens)),
            completions_per_prompt=args.completions,
            seed=step,
        )
        batch, _ = policy_batch(groups, sampled)
        learner.forward_backward(batch, PolicyLoss(learned))
        learner.optim_step({POLICY: 1e-6})
        held.append(resident_mb())
        print(f"step {step + 1}: {held[-1]:.0f} MB", flush=True)
    later = np.array(held[len(held) // 2 :])
    at = np.arange(len(later))
    (slope, _), covariance = np.polyfit(at, later, 1, cov=True)
    error = 1.96 * float(np.sqrt(covariance[0, 0]))
    found = {
        "steps": args.steps,
        "first_mb": round(held[0]),
        "half_way_mb": round(later[0]),
        "last_mb": round(held[-1]),
        "slope_mb_per_step": round(float(slope), 3),
        "ci95": [round(float(slope) - error, 3), round(float(slope) + error, 3)],
        "peak_gb": round(peak_gb(), 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
