"""Which method fits what somebody has: rules, each with its reason.

They follow what papers and practice agree on: outcome rewards where answers can be checked, pairs where only people can
judge, a critic where credit has to be assigned within a completion and memory allows it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from posttrain import errors

FEEDBACK: Mapping[str, str] = MappingProxyType(
    {
        "verifiable": "answers that a program can check: numbers, mathematics, code, a format",
        "reward-model": "something that scores any answer: a reward model, or a function of your own",
        "pairs": "pairs of answers, of which people (or a judge) chose one",
        "thumbs": "single answers, each found good or bad",
        "steps": "steps of reasoning, of which people marked the first wrong one",
        "demonstrations": "answers as they should be, and no judgement of others",
    }
)
"""What one can have, by the name that is typed."""

COMPUTE: Mapping[str, str] = MappingProxyType(
    {
        "laptop": "a few CPU cores, or a small GPU",
        "gpu": "one large GPU",
        "cluster": "memory for a second model of the policy's size",
    }
)


@dataclass(frozen=True)
class Advice:
    """One method, why, and when to take another."""

    method: str  # an algorithm's name, or a command's
    command: str
    because: tuple[str, ...]
    instead: tuple[str, ...]


def advise(have: Collection[str], compute: str, *, long: bool = False) -> list[Advice]:
    """What to do with what there is, the first thing first.

    Args:
        have: names in `FEEDBACK`.
        compute: a name in `COMPUTE`.
        long: completions are long chains of thought.

    Raises:
        UserError: nothing to learn from, or an unknown name.

    Example:
        >>> [advice.method for advice in advise(["thumbs"], "laptop")]
        ['kto']
    """
    for name in have:
        if name not in FEEDBACK:
            raise errors.unknown("kind of feedback", name, FEEDBACK)
    if compute not in COMPUTE:
        raise errors.unknown("compute", compute, COMPUTE)
    if not have:
        raise errors.UserError(
            f"there is nothing to learn from yet; have one of {', '.join(FEEDBACK)}: the cheapest is a function "
            "that scores an answer, FILE.py:function"
        )
    found = [_first_steps()] if "demonstrations" in have else []
    if "pairs" in have:
        found.append(_pairs(compute, also="verifiable" in have or "reward-model" in have))
    if "steps" in have:
        found.append(_steps(compute))
    if "thumbs" in have:
        found.append(_thumbs(compute, pairs="pairs" in have))
    if "verifiable" in have:
        found.append(_verifiable(compute, long))
    elif "reward-model" in have:
        found.append(_scored(compute, long))
    return found


def _adapter(compute: str) -> str:
    return " --lora-rank 16 --lr 1e-4" if compute == "laptop" else ""


def _first_steps() -> Advice:
    return Advice(
        "sft",
        "posttrain sft --dataset demonstrations.jsonl",
        (
            "imitation is where every other method starts from: what a policy never says cannot be rewarded",
            "a few hundred good answers are enough for a form, such as thinking in tags before answering",
        ),
        ("nothing, if the model does now and then what it should already",),
    )


def _verifiable(compute: str, long: bool) -> Advice:
    reasons = ("answers that can be checked need no learned reward, which could be gamed",)
    if long and compute == "cluster":
        return Advice(
            "vapo",
            "posttrain rl --algorithm vapo --critic own --critic-lr 2e-6 --dataset tasks.jsonl --reward math",
            (*reasons, "with long completions a critic says which part was good, and there is memory for one"),
            ("dapo where a critic costs too much", "gspo for mixtures of experts, whose token ratios jump"),
        )
    if long:
        return Advice(
            "dapo",
            f"posttrain rl --algorithm dapo --dataset tasks.jsonl --reward math{_adapter(compute)}",
            (
                *reasons,
                "no critic and no reference: one model in memory",
                "its clip, refills and token mean are made for long completions",
            ),
            ("vapo or vineppo if single steps have to be told apart", "--length-penalty 0.2 if answers grow too long"),
        )
    return Advice(
        "grpo",
        f"posttrain rl --algorithm grpo --kl-coefficient 0 --dataset tasks.jsonl --reward math{_adapter(compute)}",
        (
            *reasons,
            "the group is the baseline, so no critic is held; without a KL no reference either",
            "it has few knobs, and most is known about it",
        ),
        (
            "dr-grpo if wrong answers grow long",
            "rloo or reinforce++ if groups have to be small",
            "vineppo if single steps have to be told apart",
        ),
    )


def _scored(compute: str, long: bool) -> Advice:
    reward = "--reward-model OWNER/NAME"
    own = "--reward FILE.py:function in place of --reward-model, if what scores is a function of your own"
    if compute == "laptop":
        return Advice(
            "rloo",
            f"posttrain rl --algorithm rloo --dataset prompts.jsonl {reward}{_adapter(compute)}",
            (
                "a score for any answer can be maximised as it is; the KL in the reward keeps it from being gamed",
                "the other completions of a prompt are the baseline, so nothing but the policy is held",
            ),
            (
                "posttrain online-preference --algorithm dpo if only the order of scores can be trusted",
                "ppo if single tokens have to be told apart, and several updates made of each batch",
                own,
            ),
        )
    return Advice(
        "ppo",
        f"posttrain rl --algorithm ppo --updates-per-step 4 --dataset prompts.jsonl {reward}",
        (
            "a critic assigns credit within a completion, and several updates are made of each batch",
            "the most control: KL, clip, values and entropy have knobs of their own",
        ),
        (
            "ppo-penalty to name the KL instead of its coefficient",
            "ppo-ptx if what the model knew must not be lost",
            "rloo, which is simpler, if rewards come at the end anyway" if not long else "vapo for long completions",
            own,
        ),
    )


def _pairs(compute: str, *, also: bool) -> Advice:
    return Advice(
        "dpo",
        f"posttrain preference --algorithm dpo --dataset pairs.jsonl --eval-share 0.1{_adapter(compute)}",
        (
            "pairs are learned from directly: no reward model, no sampling, the most stable of all",
            *(("first on the pairs, then on what can be scored",) if also else ()),
        ),
        (
            "simpo if answers grow long, orpo without a stage of imitation before",
            "ipo or --label-smoothing 0.1 if choices are noisy",
            "dpop if the logprob of chosen answers falls",
            "posttrain online-preference if there is a score as well and the policy moves far from the pairs",
        ),
    )


def _steps(compute: str) -> Advice:
    return Advice(
        "step-dpo",
        f"posttrain preference --algorithm step-dpo --dataset steps.jsonl{_adapter(compute)}",
        ("what is right before the first wrong step is given and not unlearned",),
        ("dpo on whole answers if steps were judged for few of them",),
    )


def _thumbs(compute: str, *, pairs: bool) -> Advice:
    return Advice(
        "kto",
        f"posttrain preference --algorithm kto --dataset thumbs.jsonl{_adapter(compute)}",
        ("good and bad answers need not belong together, nor be equally many",),
        ("dpo on the pairs first: a pair says more than two thumbs",) if pairs else ("collect pairs, which say more",),
    )
