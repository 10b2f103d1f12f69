"""RLHF whole, on rankings of three labellers: consensus, reward model, PPO, before and after.

    python examples/rlhf/rlhf.py
    python examples/rlhf/rlhf.py --steps 2 --output runs/rlhf-try

README.md beside this file says what it does and found. A finished stage is not done again for the same --output.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.annotation import agreement
from posttrain.annotation.aggregation import method
from posttrain.annotation.rankings import agree, load_rankings

HERE = Path(__file__).parent
BASE = "smollm2-135m-instruct"
Row = dict[str, Any]

TO_DO = """
add ask bake bring brush buy call change charge check clean close cover cut draw drink dry eat fill find fix get
give hang heat hold keep lay leave lift look lower make mix move open pack pour press pull push put read remove
replace restart rinse rub run seal set soak stand start stir store take talk test tighten try turn use wait walk
warm wash water wear wipe write
"""
GIVES_UP = "nothing cannot sorry always never fine luck everyone nobody"


def useful(completion: str) -> float:
    """What the reward is held against, and no model learns from: names something to do, and does not give up.

    It sees words alone: an answer that lists verbs would fool it, and a new way to help is lost on it.
    """
    words = re.findall(r"[a-z]+", completion.lower())
    return float(any(word in TO_DO.split() for word in words) and not any(word in GIVES_UP.split() for word in words))


def rows_of(path: Path) -> list[Row]:
    """A jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def consensus(prompts: list[Row]) -> list[Row]:
    """A pair for every two answers that the labellers' majority tells apart; prints how far they agree."""
    rankings, way = load_rankings(str(HERE / "rankings.jsonl")), method("majority")
    agreed = agree(rankings, way(rankings))
    print(f"{len(rankings)} rankings of {len(agreed)} prompts; Krippendorff's alpha {agreement.alpha(rankings):.2f}")
    for one in agreement.annotators([agreement.shares(rankings, agreed, way)]):
        said = f"  {one.annotator} agrees with the consensus in {one.agreement:.0%} of {one.comparisons} comparisons"
        print(said + "; noisy: nearer to chance than to the others" * one.noisy)
    by_item = {row["item"]: row for row in prompts}
    pairs: list[Row] = []
    for one in agreed:
        asked = by_item[str(one.item)]
        for chosen, rejected in one.pairs:
            sides = {"chosen": asked["responses"][chosen], "rejected": asked["responses"][rejected]}
            pairs.append({"prompt": asked["prompt"], **sides})
    print(f"  {len(pairs)} of {3 * len(agreed)} pairs of answers have a majority")
    return pairs


def stage(folder: Path, form: Any) -> Any:
    """Run a stage, unless it is finished in this folder, and say how long it took; the folder is the trained model."""
    if (folder / "done").exists():
        return str(folder)
    began = time.monotonic()
    if stopped := pt.run(form, output=folder, quiet=True).interrupted:
        raise SystemExit(f"{folder.name}: stopped by {stopped}; remove {folder} and start again")
    (folder / "done").touch()
    print(f"  {folder.name}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return str(folder)


def curve(run: Path) -> list[Row]:
    """Held-out reward, measure and length at each evaluation, and the KL to where PPO began."""
    lines = rows_of(run / "metrics.jsonl")
    names = {"reward": "evaluation/reward", "useful": "evaluation/gold", "tokens": "evaluation/length"}
    names["kl"] = "evaluation/kl"
    found = [{"step": line["step"]} | {n: line.get(key) for n, key in names.items()} for line in lines]
    return [row for row in found if row["reward"] is not None]


def verdict(found: list[Row]) -> str:
    """Whether the measure followed the reward."""
    first, last, best = found[0], found[-1], max(found, key=lambda row: row["useful"])
    said = (
        f"reward {first['reward']:+.2f} to {last['reward']:+.2f}, useful {first['useful']:.0%} to {last['useful']:.0%}"
    )
    if best["useful"] - last["useful"] > 0.05 and last["reward"] >= best["reward"]:
        return f"{said}: over-optimised after step {best['step']}, where {best['useful']:.0%} were useful"
    return f"{said}: {'both rose' if last['useful'] > first['useful'] else 'the measure did not follow'}"


def main() -> None:
    """Run all stages, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="updates of PPO")
    parser.add_argument("--model", default=BASE)
    parser.add_argument("--output", type=Path, default=Path("runs/rlhf"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    began, output = time.monotonic(), options.output
    prompts = rows_of(HERE / "prompts.jsonl")
    asked, heldout = pt.split([{"prompt": row["prompt"]} for row in prompts], heldout=0.25, seed=0)
    held = {row["prompt"] for row in heldout}
    pairs = consensus(prompts)
    unseen = [row for row in prompts if row["prompt"] not in held]
    said = [{"prompt": row["prompt"], "completion": one} for row in unseen for one in row["responses"]]

    # a policy that answers in a sentence, as well or badly as those that people were shown
    start = stage(
        output / "start",
        pt.SFT(dataset=said, model=options.model, epochs=3, lr=3e-5, examples_per_step=12, seed=options.seed),
    )
    reward = stage(
        output / "reward",
        pt.RewardModel(
            dataset=[pair for pair in pairs if pair["prompt"] not in held],
            eval_dataset=[pair for pair in pairs if pair["prompt"] in held],
            model=start,
            lr=3e-5,
            pairs_per_step=8,
            epochs=2,
            seed=options.seed,
        ),
    )
    policy = stage(
        output / "policy",
        pt.RL(
            dataset=asked,
            model=start,
            reward_model=reward,
            algorithm=pt.PPO(kl_coefficient=0.02),
            eval_dataset=heldout,
            eval_every=max(1, options.steps // 4),
            eval_samples=4,
            gold=useful,
            steps=options.steps,
            prompts_per_step=16,
            completions_per_prompt=2,
            updates_per_step=2,
            max_new_tokens=40,
            lr=1e-5,
            keep_last=1,
            seed=options.seed,
        ),
    )
    print("\nstep  reward  useful  KL     tokens")
    found = curve(Path(policy))
    for row in found:
        kl = "" if row["kl"] is None else f"{row['kl']:.2f}"
        print(f"{row['step']:4}  {row['reward']:+.2f}   {row['useful']:.0%}     {kl:5}  {row['tokens']:.0f}")
    print(f"\n{verdict(found)}")
    shown = [row["prompt"] for row in heldout[:4]]
    for name, model in (("before", start), ("after", policy)):
        answers = pt.load(model).generate(shown, max_new_tokens=40, seed=1)
        print(f"\n{name}:")
        for prompt, answer in zip(shown, answers, strict=True):
            print(f"  {prompt} {answer[0].strip()}")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes; report {output / 'policy' / 'report.html'}")


if __name__ == "__main__":
    main()
