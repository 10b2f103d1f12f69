"""docs/algorithms.md is made from the algorithms' own files. Run as a program, this writes it anew."""

import re
from pathlib import Path

from posttrain import algorithms, catalogue
from posttrain.algorithms import ALGORITHMS

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
INTRODUCTION = (
    "Written by `python -m tests.examples.test_algorithms_page` from the files in `src/posttrain/algorithms/`: change "
    "those. `posttrain algorithms` prints the table, `posttrain explain NAME` one of the texts, and `posttrain advise` "
    "recommends one for your data and hardware.",
    "",
    "*Models in memory* is for full fine-tuning with default hyperparameters. With `--lora-rank` every algorithm "
    "holds one network: the reference is the policy with its adapter disabled, and the critic a value head on its "
    "trunk (`--critic own` and `prime` hold a second network); a teacher or prover is always a separate model. "
    "Reference logprobs of pairs are precomputed before training, so the reference is not in memory, except with "
    "`online-preference`. *Passes per step* counts forward passes over the batch, sampling excluded: of reference, "
    "teacher, critic and process reward model, and of the policy, which has a backward pass too, once for each update.",
)

FIRST = {
    "nothing below applies": (
        "`grpo --kl-coefficient 0`, or `dapo` for long reasoning",
        "the best understood; on a [small task](results.md#algorithms-of-the-last-eighteen-months) its successors "
        "differ little from it",
    ),
    "several rewards, one of which dominates": (
        "`gdpo`",
        "each reward is normalised by itself, so that only weights count",
    ),
    "most prompts are hardly ever solved": (
        "`maxrl`",
        "weighs a prompt by the inverse of its success rate",
    ),
    "you will sample k answers and keep the best": (
        "`pass-at-k`, then `grpo`",
        "rewards sets of k; easy prompts are left alone, so that entropy stays",
    ),
    "several updates on a batch": (
        "`dppo`; `cispo` or `sapo` where rare tokens are clipped",
        "dppo kept learning on the small task; cispo and sapo leave each token its gradient, and became certain sooner",
    ),
    "mixture-of-experts, noisy ratios of single tokens": (
        "`gspo`, or `gmpo`",
        "one ratio for a completion",
    ),
    "another engine, or `--max-staleness`": (
        "`--tis-cap 2`; then `--importance masked --importance-floor 0.5 --tis-cap 5` (IcePop), or `dppo`",
        "importance weights correct for the sampler; those of `--importance-level product` are unbiased, and drift "
        "with length (`log_importance/long`)",
    ),
    "entropy collapses early": (
        "`dapo` (clip-higher), then `kl-cov` or `clip-cov`",
        "few tokens carry the fall",
    ),
    "a second network fits": (
        "`ppo`, or `prime` where outcomes are right or wrong",
        "a value, or a reward, for each token",
    ),
    "another model solves some of what the policy does not": (
        "`pav`; `opd` where it is better throughout",
        "pays steps from which the other model succeeds more often",
    ),
    "demonstrations with errors, of a task that the model nearly can": (
        "`sft --algorithm dft`",
        "unlikely tokens weigh less; for new formats use `sft`",
    ),
    "preference pairs": (
        "`preference --algorithm dpo`; a small model or few pairs with `--lora-rank 16 --lr 1e-4`",
        "no sampling, no reward model; of [ten algorithms](results.md#preferences-ten-algorithms-on-the-same-439-pairs)"
        " eight learn what people prefer",
    ),
    "chosen responses become less likely, too": ("`dpop`, or `irpo`", "a term of its own holds them up"),
}
"""What a user should try first: what to type, and why, by what applies."""


def page() -> str:
    """A table of all algorithms, then `explain` of each."""
    head = ("algorithm", "run by", "changes", "paper", "needs", "models in memory", "passes per step")
    lines = [
        "# The algorithms",
        "",
        *INTRODUCTION,
        "",
        "## Which to try first",
        "",
        "| if | try | because |",
        "|---|---|---|",
        *(f"| {when} | {what} | {why} |" for when, (what, why) in FIRST.items()),
        "",
        "## All",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in catalogue.rows():
        arxiv = row.paper[:1].isdigit()
        paper = f"[{row.paper}](https://arxiv.org/abs/{row.paper})" if arxiv else row.paper
        cells = (
            f"[{row.name}](#{anchor(row.name)})",
            f"`posttrain {algorithms.COMMANDS[row.family]}`",
            row.changes,
            paper,
        )
        lines.append("| " + " | ".join([*cells, ", ".join(row.needs), str(row.models), str(row.forwards)]) + " |")
    for row in catalogue.rows():
        lines += [
            "",
            f'<a id="{anchor(row.name)}"></a>',
            "",
            f"## {row.name}",
            "",
            "```text",
            catalogue.explain(row.name).rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    """The anchor of an algorithm's section."""
    return name.replace("+", "-plus")


def test_the_page_in_docs_is_current():
    said = PAGE.read_text(encoding="utf-8")
    assert said == page(), "type: python -m tests.examples.test_algorithms_page"
    links, anchors = (re.findall(pattern, said) for pattern in (r"\]\(#([^)]*)\)", r'<a id="([^"]*)">'))
    assert links == anchors and len(set(anchors)) == len(ALGORITHMS)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
