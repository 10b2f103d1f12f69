"""Findings about a run, and the thresholds of their severity."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding, the worst first."""

    PROBLEM = "problem"  # the run is broken or wasted; stop and change something
    WARNING = "warning"  # look at it before trusting the result
    NOTE = "note"  # good to know
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a run's metrics.

    Attributes:
        title: the problem, in plain words.
        evidence: the numbers that say so.
        advice: what to try; empty where nothing needs doing.
    """

    severity: Severity
    title: str
    evidence: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where a number becomes a finding."""

    window: float = 0.25
    """The share of steps that is "the start" and "the end" of a run: enough to average, little enough to differ."""
    min_steps: int = 8
    """Windows of fewer than two steps each are noise."""
    standard_errors: float = 2.0
    """A change counts if it is this many standard errors of the two windows' means: one in twenty by chance."""
    zero_advantage: float = 0.6
    """Share of groups whose completions all earn the same: more than half of the sampling then teaches nothing."""
    zero_advantage_dead: float = 0.9
    """Fewer than one group in ten carries a gradient: the run is dead whatever the other curves show."""
    solved: float = 0.95
    """Share of right answers from which low entropy and equal rewards are what success looks like."""
    entropy: float = 0.05
    """Nats per token. The likeliest token then has 99 % on average, and all completions of a prompt are the same."""
    entropy_fall: float = 0.25
    """... and only if less than this share of the start is left: some tasks are nearly deterministic from the start."""
    repetition: float = 0.3
    """Share of repeated n-grams: prose and worked steps stay under 0.2, loops are far above."""
    repetition_rise: float = 0.1
    """... and only if it grew by this much: some tasks repeat themselves."""
    truncated: float = 0.2
    """Share of completions that are cut off: every fifth has no chance to be right."""
    length_growth: float = 1.5
    """Times as long as at the start, without more reward: length itself is being learned."""
    kl: float = 0.5
    """Nats per token from the reference: a sentence of 20 tokens is e^10, 22000 times, likelier than it was."""
    kl_jump: float = 10.0
    """Times the median of the run: a sudden tear, mostly from one bad batch or too high a learning rate."""
    logprob_gap_mean: float = 0.03
    """Nats. Arithmetic in bfloat16 moves a logprob by 0.01 to 0.02 on average; more is another model or setting."""
    logprob_gap_max: float = 1.0
    """Nats: the ratio of one token is off by a factor of e before any learning, which no rounding does."""
    clip_fraction: float = 0.2
    """Share of tokens that the clip stops: with one in five the update is much larger than the method allows for."""
    unparsed: float = 0.2
    """Share of completions in which no answer is found: the reward measures format, not correctness."""
    silent: float = 0.5
    """Share of completions that a reward does not apply to: what is optimised is mostly the sum of the others."""
    held_out_gain: float = 0.01
    """Held-out accuracy that moved less than a point has not moved."""
    gold_lost: float = 0.2
    """Share of what was gained by the gold reward that is lost again, and beyond its standard errors: a turn."""
    overfit: float = 0.05
    """Share by which a held-out loss is above its lowest: more than its noise."""
