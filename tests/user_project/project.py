"""A user's project: `make check` reads it with basedpyright in strict mode, as a user's editor does. It is not run."""

import own

import posttrain as pt

EXAMPLE = [
    {"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a in range(10) for b in range(10)
]


def score(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


def notebook() -> str:
    train, heldout = pt.split(EXAMPLE, heldout=0.2, seed=0)
    cold = pt.run(pt.SFT(dataset=train[:20]))
    algorithm = pt.GRPO(kl_coefficient=0)
    run = pt.run(pt.RL(model=cold, dataset=train, reward=score, algorithm=algorithm, steps=10, max_new_tokens=8))
    print(run.metrics["reward/mean"][-1], run.verdict, run.report, run.steps, run.stopped_early)
    found = pt.run(pt.Compare(model=run, baseline=cold, dataset=heldout, reward=score, max_new_tokens=8))
    if found.gain is not None:
        low, high = found.gain.ci95
        print(found.gain.value, low, high, found.gain.n, found.model.headline.accuracy)
    return pt.load(run).chat("3+4=")


def own_objects() -> list[object]:
    rewards = {"brief": (own.brief, 0.1), "novelty": own.Novelty()}
    form = pt.RL(dataset=EXAMPLE, reward=rewards, judge={"kind": own.Kind()}, algorithm=own.Sharper(), steps=2)
    run = pt.run(form, output="runs/own", callbacks=[own.Enough()], quiet=True)
    again = pt.resume(
        run, steps=4, dataset=EXAMPLE, reward=rewards, judge={"kind": own.Kind()}, algorithm=own.Sharper()
    )
    played = pt.run(pt.RL(environment=own.Guess(), steps=2), cluster=pt.Cluster(trainers=2))
    texts = [str(row["completion"]) for row in played.samples]
    return [*again.metrics["reward/mean"].tolist(), *(finding.severity for finding in again.findings), len(texts)]


def kits() -> None:
    pt.testing.check_environment(own.Guess())
    pt.testing.check_algorithm(own.Sharper())


def feedback() -> None:
    pairs = [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]
    trained = pt.run(pt.Preference(dataset=pairs, algorithm=pt.DPO(beta=0.1), eval_share=0.1))
    print(trained.pairs, trained.dropped, trained.before, trained.after)
    model = pt.run(pt.RewardModel(dataset=pairs))
    judged = pt.run(pt.EvaluateReward(dataset=pairs, model=model))
    print(judged.report, judged.difference)
    online = pt.run(pt.OnlinePreference(dataset=EXAMPLE, reward_model=str(model.run)))
    best = pt.run(pt.BestOfN(dataset=EXAMPLE, model=online, reward=score, output="best.jsonl"))
    scores = pt.run(pt.ScoreCompletions(dataset=EXAMPLE, reward=score))
    said = pt.run(pt.Generate(model=online, prompt="1+1="))
    print(best.path, best.kept, scores.mean, said.seconds, said.lines())
