"""Findings about a run, and the thresholds of their severity."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding, the worst first."""

    PROBLEM = "problem"  # the run is broken or wasted; stop and change something
    WARNING = "warning"  # check it before trusting the result
    NOTE = "note"  # worth knowing; the result can be trusted
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a run's metrics."""

    severity: Severity
    title: str  # the problem, in plain words
    evidence: str  # the numbers that show it
    advice: str = ""  # what to try; empty if nothing needs to be done


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where a number becomes a finding."""

    window: float = 0.25
    """Fraction of the steps that is the start, or the end, of a run: enough to average, little enough to differ."""
    min_steps: int = 8
    """Windows of fewer than two steps each are noise."""
    standard_errors: float = 2.0
    """A change counts if it is this many standard errors of the two windows' means: by chance one in twenty does."""
    zero_advantage: float = 0.6
    """Fraction of groups whose completions all have the same reward: more than half of the samples have no gradient."""
    zero_advantage_dead: float = 0.9
    """Fewer than one group in ten has a gradient: the policy cannot learn, whatever the other curves show."""
    solved: float = 0.95
    """Accuracy from which low entropy and equal rewards are expected."""
    entropy: float = 0.05
    """Nats per token. The most likely token then has 99% on average, and all completions of a prompt are the same."""
    entropy_fall: float = 0.25
    """... and only below this fraction of the start: some tasks are nearly deterministic from the start."""
    repetition: float = 0.3
    """Fraction of repeated n-grams: prose and worked steps stay below 0.2, loops are far above."""
    repetition_rise: float = 0.1
    """... and only if it grew by this much: some tasks repeat themselves."""
    truncated: float = 0.2
    """Fraction of truncated completions, which are rarely right."""
    length_growth: float = 1.5
    """Ratio to the length at the start, without more reward: length itself is being learned."""
    kl: float = 0.5
    """Nats per token from the reference: a sentence of 20 tokens is e^10, 22000 times, as likely as it was."""
    kl_jump: float = 10.0
    """Ratio to the median of the run: a spike, mostly from one bad batch or too high a learning rate."""
    logprob_gap_mean: float = 0.03
    """Nats. Arithmetic in bfloat16 moves a logprob by 0.01 to 0.02 on average; more is another model or setting."""
    logprob_gap_max: float = 1.0
    """Nats: the ratio of one token is off by a factor of e before any learning, which no rounding does."""
    clip_fraction: float = 0.2
    """Fraction of clipped tokens: with one in five the update is much larger than the method allows for."""
    unparsed: float = 0.2
    """Fraction of completions without a parsed answer: the reward measures format, not correctness."""
    silent: float = 0.5
    """Fraction of completions that a reward does not apply to: what is optimised is mostly the sum of the others."""
    held_out_gain: float = 0.01
    """A change of held-out accuracy by less than a point counts as none."""
    gold_lost: float = 0.2
    """Fraction of the gain in gold reward that is lost again, if it is beyond its standard errors."""
    overfit: float = 0.05
    """Relative rise of the held-out loss above its lowest value: more than its noise."""
