"""Checks of a run's metrics, one function each: curves in, a finding or None out.

A metric that a run does not have is not judged. Every bound is in `Thresholds`.
"""

import math
from collections.abc import Callable

from posttrain.report.curves import Curves, number, percent
from posttrain.report.finding import Finding, Severity, Thresholds


def not_finite(run: Curves, limits: Thresholds) -> Finding | None:
    """Non-finite metrics; `metrics.jsonl` stores them as null."""
    for row in run.rows:
        bad = [
            name
            for name, value in row.items()
            if value is None or (isinstance(value, float) and not math.isfinite(value))
        ]
        if bad:
            return Finding(
                Severity.PROBLEM,
                "A number is not finite",
                f"at step {row.get('step', '?')}: {', '.join(bad)}",
                "Resume from the checkpoint before it with a lower learning rate; look at that step's samples.",
            )
    return None


def dead(run: Curves, limits: Thresholds) -> Finding | None:
    """Most groups have equal rewards, so that all their advantages are 0."""
    name = "groups/zero_advantage"
    if not run.has(name) or (share := run.end(name)) < limits.zero_advantage:
        return None
    evidence = f"in the last steps {percent(share)} of the groups had the same reward for all their completions"
    if run.solved():
        return Finding(
            Severity.NOTE,
            "Nothing is left to learn from these problems",
            f"{evidence}; accuracy is {number(run.end('accuracy'))}",
            "Train on harder problems, or stop.",
        )
    hard = "use easier problems, a longer cold start, or more completions per prompt"
    easy = "use harder problems, or choose those that are solved sometimes"
    if run.has("accuracy"):
        advice = (
            f"The problems are too hard: {hard}."
            if run.end("accuracy") < 0.5
            else f"The problems are too easy: {easy}."
        )
    else:
        advice = f"If few completions are right, {hard}; if most are, {easy}."
    if share >= limits.zero_advantage_dead:
        return Finding(Severity.PROBLEM, "The run is dead: almost no group teaches anything", evidence, advice)
    return Finding(Severity.WARNING, "Most of the sampling is wasted", evidence, advice)


def entropy_collapse(run: Curves, limits: Thresholds) -> Finding | None:
    """Entropy collapse: the policy no longer explores."""
    if not run.has("entropy") or run.solved():
        return None
    end, start = run.end("entropy"), run.start("entropy")
    if end >= limits.entropy or end >= limits.entropy_fall * start:
        return None
    return Finding(
        Severity.WARNING,
        "Entropy has collapsed: the policy no longer explores",
        f"{run.change('entropy')} nats per token",
        "Lower the learning rate, raise the upper clip bound, or add a KL term.",
    )


def repetition(run: Curves, limits: Thresholds) -> Finding | None:
    """Repetition loops within completions."""
    if not run.has("repetition"):
        return None
    end, start = run.end("repetition"), run.start("repetition")
    if end < limits.repetition or end - start < limits.repetition_rise:
        return None
    return Finding(
        Severity.PROBLEM,
        "Completions repeat themselves",
        run.change("repetition"),
        "Add a repetition penalty to the reward, lower the learning rate, and go back to an earlier checkpoint.",
    )


def truncated(run: Curves, limits: Thresholds) -> Finding | None:
    """Completions truncated at the limit of new tokens."""
    name = "length/truncated"
    if not run.has(name) or (share := run.end(name)) < limits.truncated:
        return None
    runaway = run.rose(name)
    return Finding(
        Severity.PROBLEM if runaway else Severity.WARNING,
        "Length runs away: more and more completions are cut off" if runaway else "Many completions are cut off",
        f"{percent(share)} of the last steps' completions reached the limit, {percent(run.start(name))} at the start",
        "Allow more new tokens, or add a length reward; a completion that is cut off can hardly be right.",
    )


def longer_for_nothing(run: Curves, limits: Thresholds) -> Finding | None:
    """Length grows without more reward."""
    name, outcome = "length/mean", run.outcome()
    if not run.has(name, outcome) or run.end(name) < limits.length_growth * run.start(name) or run.rose(outcome):
        return None
    return Finding(
        Severity.WARNING,
        "Completions grow longer and not better",
        f"{run.change(name)} tokens; {run.change(outcome)}",
        "Add a length reward, or an algorithm without a bias towards length.",
    )


def kl(run: Curves, limits: Thresholds) -> Finding | None:
    """KL to the reference grows, slowly or at one step."""
    if not run.has("kl"):
        return None
    values = sorted(run.values("kl"))
    median, highest = values[len(values) // 2], values[-1]
    if run.end("kl") >= limits.kl:
        title, evidence = "The policy is far from its reference", f"{run.change('kl')} nats per token"
    elif highest >= limits.kl and highest >= limits.kl_jump * median:
        title = "The policy tore away from its reference for a moment"
        evidence = f"kl was {number(highest)} nats per token at its highest, {number(median)} at the median"
    else:
        return None
    return Finding(
        Severity.WARNING,
        title,
        evidence,
        "Lower the learning rate, clip gradients harder, or raise the KL coefficient.",
    )


def logprob_gap(run: Curves, limits: Thresholds) -> Finding | None:
    """Logprob gap: sampler and trainer disagree about sampled tokens, in steps whose weights sampled all of them."""
    parts = []
    fresh = Curves([row for row in run.rows if not row.get("staleness/max")], limits)
    for name, limit in (("logprob_gap/mean", limits.logprob_gap_mean), ("logprob_gap/max", limits.logprob_gap_max)):
        worst = max(fresh.values(name), default=0.0)
        if worst > limit:
            parts.append(f"{name} reached {number(worst)} nats, {number(limit)} is the bound")
    if not parts:
        return None
    return Finding(
        Severity.PROBLEM,
        "Engine and trainer disagree about the same tokens",
        "; ".join(parts),
        "Type posttrain verify; compute in float32; check that both use the same weights and sampling settings.",
    )


def clipped(run: Curves, limits: Thresholds) -> Finding | None:
    """A large fraction of clipped ratios."""
    name = "clip_fraction"
    if not run.has(name) or (share := run.end(name)) < limits.clip_fraction:
        return None
    return Finding(
        Severity.WARNING,
        "Updates are too large",
        f"in the last steps the clip stopped {percent(share)} of the tokens",
        "Lower the learning rate, or make fewer updates of each batch.",
    )


def unparsed(run: Curves, limits: Thresholds) -> Finding | None:
    """Unparsed completions: the verifier finds no answer."""
    name = "unparsed"
    if not run.has(name) or (share := run.end(name)) < limits.unparsed:
        return None
    return Finding(
        Severity.WARNING,
        "Many answers cannot be read",
        f"no answer was found in {percent(share)} of the last steps' completions",
        "Look at the samples: say in the prompt how to answer, add a format reward, or use another verifier.",
    )


def gaming(run: Curves, limits: Thresholds) -> Finding | None:
    """Reward rises without accuracy: possible reward hacking."""
    reward, held_out = "reward/mean", run.values("evaluation/accuracy")
    if not run.rose(reward):
        return None
    if len(held_out) >= 2:
        if held_out[-1] - held_out[0] >= limits.held_out_gain:
            return None
        evidence = f"held-out accuracy from {number(held_out[0])} to {number(held_out[-1])}"
    elif run.has("accuracy") and not run.rose("accuracy") and not run.solved():
        evidence = run.change("accuracy")
    else:
        return None
    return Finding(
        Severity.WARNING,
        "Reward rises and accuracy does not: the reward may be gamed",
        f"{run.change(reward)}; {evidence}",
        "Compare the components of the reward and read the last samples: which part pays without a right answer?",
    )


def over_optimised(run: Curves, limits: Thresholds) -> Finding | None:
    """Overoptimisation: gold declines while the training reward still rises."""
    gold, proxy = run.values("evaluation/gold"), run.values("evaluation/reward")
    if len(gold) < 3 or len(gold) != len(proxy):
        return None
    best = max(range(len(gold)), key=lambda i: gold[i])
    lost, gained = gold[best] - gold[-1], gold[best] - gold[0]
    noise = limits.standard_errors * max(run.values("evaluation/gold_se"), default=0.0)
    if proxy[-1] <= proxy[best] or lost <= max(limits.gold_lost * gained, noise):
        return None
    return Finding(
        Severity.WARNING,
        "The reward is being gamed: what it stands for gets worse while it rises",
        f"gold was {number(gold[best])} at its best, evaluation {best} of {len(gold) - 1}, and is {number(gold[-1])} "
        f"now; the reward went from {number(proxy[best])} to {number(proxy[-1])} since",
        "Use the best checkpoint, `stop_after` of posttrain rl, more KL, an ensemble's worst score, or new labels.",
    )


def progress(run: Curves, limits: Thresholds) -> Finding | None:
    """Improvement of the objective: the reward, or without one the loss."""
    if run.has("reward/mean"):
        if run.rose("reward/mean"):
            return Finding(Severity.GOOD, "The policy earns more reward", run.change("reward/mean"))
        if run.solved():
            return None
        fell = run.fell("reward/mean")
        return Finding(
            Severity.WARNING,
            "The policy earns less reward than at the start" if fell else "No improvement",
            run.change("reward/mean") + ("" if fell else ", which is within its noise"),
            "Lower the learning rate."
            if fell
            else "Use more steps, another learning rate, or problems that suit the policy.",
        )
    if run.has("loss"):
        if run.fell("loss"):
            return Finding(Severity.GOOD, "The loss falls", run.change("loss"))
        return Finding(
            Severity.WARNING,
            "The loss does not fall",
            run.change("loss"),
            "Use more steps or a higher learning rate; check what the loss mask covers.",
        )
    return None


def overfit(run: Curves, limits: Thresholds) -> Finding | None:
    """Overfitting: the held-out loss rises again."""
    losses = run.values("evaluation/loss")
    if len(losses) < 2 or losses[-1] <= (1 + limits.overfit) * min(losses):
        return None
    return Finding(
        Severity.WARNING,
        "The policy learns its training data by heart",
        f"held-out loss was {number(min(losses))} at its lowest and is {number(losses[-1])} now",
        "Train for fewer epochs, or use the best checkpoint rather than the last.",
    )


def silent(run: Curves, limits: Thresholds) -> Finding | None:
    """A reward that does not apply to most completions, such as a judge whose verdicts have no score."""
    prefix = "not_applicable/"
    names = dict.fromkeys(name for row in run.rows for name in row if name.startswith(prefix))
    shares = {name.removeprefix(prefix): sum(run.values(name)) / len(run.rows) for name in names}
    most = max(shares.values(), default=0.0)
    if most < limits.silent or (len(run.rows) < limits.min_steps and most < 1.0):
        return None
    name = max(shares, key=lambda name: shares[name])
    return Finding(
        Severity.WARNING,
        f"The reward '{name}' says nothing about most completions",
        f"it does not apply to {percent(shares[name])} of them; the total is that of the other rewards",
        "Score some completions with posttrain score. A judge whose verdicts have no score needs longer replies, "
        "another prompt or a larger model.",
    )


Check = Callable[[Curves, Thresholds], Finding | None]

CHECKS: tuple[Check, ...] = (
    not_finite,
    dead,
    entropy_collapse,
    repetition,
    truncated,
    longer_for_nothing,
    kl,
    logprob_gap,
    clipped,
    unparsed,
    silent,
    gaming,
    over_optimised,
    progress,
    overfit,
)
