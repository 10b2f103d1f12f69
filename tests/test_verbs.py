"""The verbs on a tiny model: what Python gives is bound, marked in config.toml, and asked for again at resume."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import posttrain as pt
from posttrain import verbs
from posttrain.cli import main
from posttrain.engine.transformers import TransformersEngine
from posttrain.environments.env import Seat
from posttrain.runs import read_run, session
from posttrain.training import checkpoint
from posttrain.training.local_learner import LocalLearner, learner_for
from posttrain.types import Completion, Engine, Outcome, Reply, Request, Sampling, StopReason, Usage
from tests.recipes.folders import model_folder

ROWS = [{"prompt": f"{i}?", "completion": str(i), "letters": "abcdefghijklm"} for i in range(8)]
SMALL: dict[str, Any] = {"prompts_per_step": 4, "completions_per_prompt": 2, "max_new_tokens": 4, "lr": 1e-2}
HELD: dict[str, Any] = {"dataset": ROWS[:4], "eval_dataset": ROWS[4:], "eval_every": 1}
SMALL |= {"warmup_steps": 0, "precision": "float32", "dataset": ROWS}


def early(completion: str, letters: str) -> float:
    return sum(letter.lower() in letters for letter in completion) / max(1, len(completion))


def late(completion: str, letters: str) -> float:
    return 1 - early(completion, letters)


def graded(completion: str, answer: str) -> float:
    return float(completion == answer)


class Length:
    """A reward with state."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, completion: str) -> float:
        return min(len(completion), self.most) / self.most


@dataclass(frozen=True)
class Sharper(pt.GRPO):
    """An algorithm of one's own."""

    clip_high: float = 0.1
    kl_coefficient: float = 0.0


class Guess(pt.Environment):
    """An environment of one's own, with a judge."""

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def tasks(self, split: str, seed: int) -> Sequence[pt.Task]:
        return [pt.Task((pt.Message("user", f"{digit}?"),), answer=digit) for digit in range(self.digits)]

    async def play(self, task: pt.Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        reply = await seats["policy"].turn(task.prompt)
        return Outcome({"policy": float(len(reply.text) % 2)})


class Kind:
    """A judge of one's own."""

    def __init__(self, score: int) -> None:
        self.score = score

    async def chat(
        self, messages: Sequence[pt.Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        return Reply(pt.Message("assistant", f"Score: {self.score}"), StopReason.STOP, Usage(1, 1))


class Until(pt.Callback):
    """Ends a run."""

    def __init__(self, last: int) -> None:
        self.last, self.rewards = last, list[float]()

    def on_step(self, session: Any, step: int, metrics: Mapping[str, float]) -> None:
        self.rewards.append(metrics["reward/mean"])
        if step == self.last:
            session.stop("enough")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("verbs") / "model")


def in_memory(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def objects(folder: Path) -> dict[str, Any]:
    """What the run is given, made anew."""
    rewards = {"early": early, "length": (Length(4), 0.1)}
    return {"dataset": ROWS, "model": in_memory(folder), "reward": rewards, "algorithm": Sharper()}


@pytest.fixture(scope="module")
def whole(folder: Path) -> pt.RunResult:
    """A run of four steps."""
    form = pt.RL(**{**SMALL, **objects(folder)}, steps=4)
    return pt.run(form, output=folder.parent / "whole", quiet=True)


@pytest.fixture(scope="module")
def begun(folder: Path) -> pt.RunResult:
    """The same, of two steps."""
    form = pt.RL(**{**SMALL, **objects(folder)}, steps=2)
    return pt.run(form, output=folder.parent / "begun", quiet=True)


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return checkpoint.load_tensors(found.path / "masters.safetensors")


def alike(one: pt.RunResult, other: pt.RunResult) -> None:
    """Two runs have the same weights and rewards, bit for bit."""
    first, second = weights(one.run), weights(other.run)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert one.metrics["reward/mean"].tolist() == other.metrics["reward/mean"].tolist()


def test_objects_are_marked_in_the_configuration(whole, folder):
    config = read_run(whole.run).config
    names = {"dataset": "builtins.list", "model": "builtins.tuple", "reward": "builtins.dict"}
    for option, name in (names | {"algorithm": f"{__name__}.Sharper"}).items():
        mark, digest = config[option].split()
        assert mark == f"python:{name}" and len(digest.removeprefix("sha256:")) == 64, option
    assert config["knobs"]["clip_high"] == 0.1
    assert whole.steps == 4 and len(whole.metrics["reward/early"]) == len(whole.metrics["reward/length"]) == 4


def test_a_model_in_memory_stays_as_it_was(folder, tmp_path):
    network, tokenizer = in_memory(folder)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    pt.run(
        pt.SFT(dataset=ROWS, model=(network, tokenizer), steps=1, examples_per_step=4, lr=1e-2),
        output=tmp_path / "run",
        quiet=True,
    )
    assert all(torch.equal(before[name], weight) for name, weight in network.state_dict().items())


def test_a_run_that_goes_on_with_the_same_objects_equals_one_that_did_not_stop(begun, whole, folder, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(begun.run, moved)
    found = pt.resume(str(moved), steps=4, quiet=True, **objects(folder))
    assert found.steps == 4 and found.run == moved
    alike(found, whole)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is read."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("posttrain.models.load.load_model", read)
    monkeypatch.setattr("posttrain.engine.policy.load_model", read)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": {"early": late, "length": (Length(4), 0.1)}}, "`reward`"),
        ({"reward": {"early": early, "length": (Length(5), 0.1)}}, "`reward`"),
        ({"reward": {"early": early, "length": (Length(4), 0.2)}}, "`reward`"),
        ({"dataset": ROWS[:-1]}, "`dataset`"),
        ({"algorithm": pt.GRPO(kl_coefficient=0.0)}, "`algorithm`"),
    ],
)
def test_other_objects_are_refused_before_weights_are_read(begun, folder, no_weights, changes, said):
    with pytest.raises(pt.UserError, match=f"{said}.* changed since the run started") as refused:
        pt.resume(begun, steps=3, quiet=True, **(objects(folder) | changes))
    what = "the rows" if said == "`dataset`" else "the source or state"
    assert str(refused.value).startswith(f"{what} of {said} changed")
    assert str(refused.value).endswith(f'type `accept_changes="{said[1:-1]}"`')


def test_objects_that_are_missing_are_named(begun, folder, no_weights, capsys):
    with pytest.raises(pt.UserError, match=r"was given .*`reward` \(builtins.dict\).* from Python.*resume\("):
        pt.resume(begun)
    given = objects(folder)
    del given["reward"]
    with pytest.raises(pt.UserError, match=r"was given `reward` \(builtins.dict\) from Python"):
        pt.resume(begun, **given)
    with pytest.raises(pt.UserError, match="unknown option of RL: 'rewrad'; did you mean 'reward'"):
        pt.resume(begun, rewrad=early)
    assert main(["rl", "--resume", str(begun.run)]) == 2
    assert f"resume it there: posttrain.resume({str(begun.run)!r}, dataset=...)" in capsys.readouterr().err


def test_files_of_a_run_that_was_moved_are_found(folder, tmp_path, monkeypatch):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    monkeypatch.chdir(home)
    Path("mine.py").write_text("def short(completion):\n    return 1 / (1 + len(completion))\n")
    options = SMALL | {"model": folder, "reward": "mine.py:short", "algorithm": Sharper()}
    pt.run(pt.RL(**options, steps=1), output="run", quiet=True)
    shutil.move("run", away / "run")
    shutil.rmtree(home)
    monkeypatch.chdir(away)
    found = pt.resume("run", steps=2, quiet=True, dataset=ROWS, algorithm=Sharper())
    assert len(found.metrics["reward/short"]) == 2


def test_what_a_run_says_is_what_python_can_type(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    session._announce_once.cache_clear()
    options = SMALL | {"model": folder, "reward": early, "warmup_steps": 3}
    run, other = (pt.run(pt.RL(**options, steps=2)) for _ in range(2))
    said = capsys.readouterr().err
    assert "`warmup_steps=3` of 2 steps" in said and "--warmup" not in said
    assert said.count(" thread") == 1  # the machine, which is the same for both
    assert f"run {run.run}, report {run.report}\n" in said and f"run {other.run}, " in said
    assert "accuracy" not in said and "reward 0." in said
    text = (run.run / "config.toml").read_text()
    assert text.startswith("# To repeat: the same pt.run(...) in Python, with its objects; to go on: pt.resume(")
    assert "dataset=..." in text.partition("\n")[0] and "reward=..." in text.partition("\n")[0]
    given = {"dataset": ROWS, "reward": late, "accept_changes": "reward"}
    pt.resume(run, steps=3, quiet=True, **given)
    assert "changed options" not in capsys.readouterr().err
    pt.resume(run, steps=4, **given)
    assert "steps was 3, now 4" in (said := capsys.readouterr().err) and not re.search(r"\w{64}", said)


def test_an_environment_and_a_judge_are_objects(folder, tmp_path):
    options = {key: value for key, value in SMALL.items() if key != "dataset"} | {"model": folder, "steps": 1}
    watch = Until(1)
    judge = {"kind": Kind(10)}
    run = pt.run(
        pt.RL(environment=Guess(4), judge=judge, **options | {"steps": 3}),
        output=tmp_path / "run",
        quiet=True,
        callbacks=[watch],
    )
    assert run.steps == 1 and run.stopped_early
    assert watch.rewards == run.metrics["reward/mean"].tolist()
    assert run.metrics["reward/kind"].tolist() == [1.0]
    config = read_run(run.run).config
    assert config["environment"].startswith(f"python:{__name__}.Guess sha256:")
    assert config["judge"].startswith("python:builtins.dict sha256:")
    for changes, said in ({"environment": Guess(5)}, "environment"), ({"judge": {"kind": Kind(9)}}, "judge"):
        with pytest.raises(pt.UserError, match=f"`{said}`.* changed since"):
            pt.resume(run, steps=4, quiet=True, **{"environment": Guess(4), "judge": judge, **changes})


class RecordingEngine:
    """An engine that counts what it is asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.asked = engine, 0

    def open(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return self.engine.open(*arguments, **options)

    def generate(self, requests: Sequence[Request], on_tokens: Any = None) -> list[Completion]:
        self.asked += len(requests)
        return self.engine.generate(requests, on_tokens)


class RecordingLearner:
    """A learner that counts its updates."""

    def __init__(self, learner: LocalLearner[Any]) -> None:
        self.learner, self.updates = learner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        self.updates += 1
        return self.learner.optim_step(rates)

    def forward_backward(self, batch: Any, loss: Any) -> dict[str, float]:
        return self.learner.forward_backward(batch, loss)

    def save(self, folder: Path) -> None:
        self.learner.save(folder)

    def restore(self, folder: Path) -> None:
        self.learner.restore(folder)


def test_an_engine_and_a_learner_that_are_handed_in_do_the_work(whole, folder, tmp_path):
    engines, learners = list[RecordingEngine](), list[RecordingLearner]()
    form = pt.RL(**{**SMALL, **objects(folder)}, steps=4)

    def engine(model: Any, stop: Any) -> Engine:
        engines.append(RecordingEngine(TransformersEngine(model, stop)))
        return cast(Engine, engines[-1])

    def learner(policy: Any) -> Any:
        learners.append(RecordingLearner(learner_for(form, policy.model, policy.save)))
        return learners[-1]

    given = pt.RL(**{**SMALL, **objects(folder)}, steps=4, engine=engine)
    run = pt.run(given, output=tmp_path / "run", quiet=True, learner=learner)
    assert engines[0].asked >= 4 and learners[0].updates == 4
    alike(run, whole)
    assert "python:" in read_run(run.run).config["engine"]


def test_a_learner_needs_an_engine_that_sees_its_weights(folder, tmp_path):
    form = pt.RL(**{**SMALL, **objects(folder)}, steps=1)
    with pytest.raises(pt.UserError, match="'learner' has weights of its own"):
        own = cast(Any, RecordingLearner(cast(Any, None)))
        pt.run(form, output=tmp_path / "run", quiet=True, learner=own)


@pytest.mark.parametrize(
    ("form", "where", "said"),
    [
        (lambda: pt.RL(dataset=3, reward=early), {}, "a data set is a list of rows"),
        (lambda: pt.RL(dataset=ROWS, model=object(), reward=early), {}, "`model` is a name, a folder, a run"),
        (lambda: pt.RL(dataset=ROWS, reward=early, algorithm=pt.GRPO), {}, r"is the class GRPO; .* GRPO\(\)"),
        (lambda: pt.RL(dataset=ROWS, reward=early, algorithm=Length(1)), {}, "`algorithm` is a name, or an object"),
        (
            lambda: pt.RL(dataset=ROWS, reward=early, algorithm=pt.DPO()),
            {},
            r"no algorithm of RL; give it to Preference\(",
        ),
        (lambda: pt.RL(learning_rate=1e-5), {}, "unknown option of RL: 'learning_rate'; it is called 'lr' here"),
        (lambda: pt.RL(num_generations=4), {}, "'num_generations'; it is called 'completions_per_prompt' here"),
        (lambda: pt.RL(prompt_per_step=4), {}, r"'prompt_per_step'; did you mean 'prompts_per_step'\?"),
        (lambda: pt.RL(algorithm="mine.py:Sharper", clip_high=1), {}, r"give an object, such as algorithm=GRPO\("),
        (lambda: pt.GRPO(betaa=0), {}, "unknown option of GRPO: 'betaa'; There are: clip_high"),
        (lambda: pt.GRPO(beta=0), {}, "unknown option of GRPO: 'beta'; it is called 'kl_coefficient' here"),
        (lambda: Sharper(clip_hihg=0), {}, r"unknown option of Sharper: 'clip_hihg'; did you mean 'clip_high'\?"),
        (lambda: pt.IPO(batas=0), {}, "unknown option of IPO: 'batas'"),
        (lambda: pt.KTO(betta=0), {}, "unknown option of KTO: 'betta'"),
        (lambda: pt.RL(dataset=ROWS, reward=lambda text: 1.0), {}, "a lambda has no name"),
        (lambda: pt.RL(dataset=ROWS, reward=Until(1).on_step), {}, "cannot understand the parameters"),
        (lambda: pt.RL(dataset=ROWS, reward=graded), {}, r"row 1 .*'answer', and the row has: prompt.*8 of 8 rows"),
        (lambda: pt.RL(reward=early, gold=graded, **HELD), {}, "'graded' needs the column 'answer'"),
        (lambda: pt.Evaluate(dataset=ROWS, reward=graded), {}, "'graded' needs the column 'answer'"),
        (lambda: pt.BestOfN(dataset=ROWS, reward=graded, output="x.jsonl"), {}, "'graded' needs the column 'answer'"),
        (lambda: pt.ScoreCompletions(dataset=ROWS, reward=graded), {}, "'graded' needs the column 'answer'"),
        (lambda: pt.RL(dataset=ROWS, reward=early, environment=object()), {}, "environment"),
        (lambda: pt.RL(dataset=ROWS, reward=early, judge={"kind": object()}), {}, "judge 'kind' is <object"),
        (lambda: pt.RL(dataset=ROWS, reward=early, engine=object()), {}, "`engine` is a name, addresses, an object"),
        (lambda: pt.RL(dataset=ROWS, reward=early, steps="many"), {}, "`steps` must be a whole number"),
        (lambda: pt.Compare(dataset=ROWS, reward=early), {}, "`baseline` is required"),
        (lambda: pt.Evaluate(dataset=ROWS, reward=early), {"callbacks": [Until(1)]}, "are for forms that train"),
        (lambda: pt.Evaluate(dataset=ROWS, reward=early), {"learner": Length(1)}, "are for forms that train"),
        (lambda: pt.Evaluate(dataset=ROWS, reward=early), {"cluster": pt.Cluster()}, "runs in one process"),
        (lambda: pt.SFT(dataset=ROWS), {"cluster": pt.Cluster(trainers=1, samplers=2)}, "has no `samplers`"),
        (lambda: pt.BestOfN(dataset=ROWS, reward=early), {"output": "x"}, "`output` is an option of this form"),
        (lambda: pt.GRPO(), {}, "'run' takes a form, such as RL"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_read(form, where, said, no_weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pt.UserError, match=said) as refused:
        verbs.run(form(), quiet=True, **where)
    assert "\n" not in str(refused.value)


def test_a_loaded_model_stops_at_a_string_and_scores_given_answers(folder: Path) -> None:
    model = pt.load(folder, precision="float32")
    ((whole,),) = model.generate(["ab"], max_new_tokens=24, temperature=2.0, seed=1)
    stop = next(letter for letter in whole[2:] if letter.isascii())
    ((found,),) = model.generate(["ab"], max_new_tokens=24, temperature=2.0, seed=1, stop=[stop])
    assert stop in found and whole.startswith(found) and len(found) < len(whole)
    yes, no = model.logprobs("ab", ["Yes", "No"])
    assert len(yes) == 3 and len(no) == 2 and max(*yes, *no) < 0
    with pytest.raises(pt.UserError, match="none of them empty"):
        model.generate(["ab"], stop=[""])
    (places,) = model.top_logprobs("ab", ["Yes"], top_k=len(model.policy.model.head))
    assert len(places) == 3 and all(len(each) == len(model.policy.model.head) for each in places)
    letters = [dict(reversed(each))[letter] for letter, each in zip("Yes", places, strict=True)]
    assert letters == pytest.approx(yes, abs=1e-5)
    assert all(list(each) == sorted(each, key=lambda pair: -pair[1]) for each in places)
    assert [each[:2] for each in places] == model.top_logprobs("ab", ["Yes"], 2)[0]
    with pytest.raises(pt.UserError, match="`top_k` is from 1 to"):
        model.top_logprobs("ab", ["Yes"], top_k=0)
