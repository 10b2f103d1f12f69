"""Reward models and chat models in processes: the scores and replies of one process, whoever is lost."""

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from posttrain import algorithms
from posttrain.bindings.cluster_options import ONE_PROCESS, AsyncOptions, check_cluster
from posttrain.bindings.reward_models import _loaded
from posttrain.data import load_tokenizer
from posttrain.engine.scorer import ScorerFacts
from posttrain.errors import ProcessLost, RewardError, UserError
from posttrain.models.heads import Calibration, load_reward_model
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.rewards import load_reward
from posttrain.runs import read_run
from posttrain.types import Episode, EpisodeGroup, Message, Request, Sampling, Task
from tests.distributed.fakes import pids, placed
from tests.distributed.test_recipes import curve, options, same
from tests.recipes.conftest import folder  # noqa: F401  a fixture
from tests.recipes.folders import model_folder

pytest.importorskip("ray")

from posttrain.distributed import scorers as module
from posttrain.distributed.cluster import Answer, Lost
from posttrain.distributed.pool import Share
from posttrain.distributed.samplers import Exchanged
from posttrain.distributed.scorers import ModelFacts, Models, ScorerGroup

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAID = [[Message("user", f"{i}?"), Message("assistant", "yes " * (i % 5 + 1))] for i in range(11)]
ASKED = [Request((1 + i, 2, 3), Sampling(6, 0.0 if i % 2 else 1.0), seed=i) for i in range(7)]


@pytest.fixture(scope="module")
def models(tmp_path_factory, folder):  # noqa: F811
    """Reward models of one head and of three, drawn and never trained."""
    found = tmp_path_factory.mktemp("scorers")
    for name, members in (("one", 1), ("three", 3)):
        made = load_reward_model(str(folder / "model"), dtype=torch.float32, seed=members, members=members)
        made.save(found / name, padding=0, calibration=Calibration((0.0,) * members, 1.0))
        load_tokenizer(str(folder / "model")).save_pretrained(found / name)
    return found


@pytest.fixture(scope="module")
def load(models, folder):  # noqa: F811
    model_folder(models / "other", seed=7)
    chats = [str(folder / "model"), str(models / "other")]
    return partial(_loaded, [str(models / "one"), str(models / "three")], chats, 256)


@pytest.fixture(scope="module")
def group(cluster, load):
    with ScorerGroup(2, load, precision="float32", timeout_s=15.0) as found:
        yield found


@pytest.mark.parametrize("model", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 2, 11])
def test_scores_are_those_of_one_process_in_order(group, load, model, count):
    here = load("float32").rewards[model](SAID[:count])
    there = group.scores(model)(SAID[:count])
    assert len(there) == len(here) == count
    for ours, theirs in zip(there, here, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("model", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_completions_are_those_of_one_process_in_order(group, load, model, count):
    here = load("float32").chats[model].engine.generate(ASKED[:count])
    told: list[int] = []
    there = group.engine(model).generate(ASKED[:count], told.append)
    assert [done.token_ids for done in there] == [done.token_ids for done in here] and len(there) == count
    for ours, theirs in zip(there, here, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, rel=1e-5, abs=1e-6)
        assert ours.stop_reason is theirs.stop_reason
    assert sum(told) == sum(len(done.token_ids) for done in here)


def test_one_who_gives_up_ends_the_sampling_and_the_next_is_answered(group):
    def gives_up(tokens):
        raise InterruptedError(f"{tokens} are enough")

    before = group.engine(0).generate(ASKED)
    with pytest.raises(InterruptedError, match="are enough"):
        group.engine(1).generate(ASKED, gives_up)
    assert group.engine(0).generate(ASKED) == before


def test_what_is_known_of_them(group, models, load):
    rewards, chats = group.facts
    assert [facts.members for facts in rewards] == [1, 3]
    assert all(facts.comparable and facts.most == 256 for facts in rewards)
    assert rewards[0].name == str(models / "one")
    here = load("float32").chats
    assert [facts.context for facts in chats] == [policy.model.context for policy in here]
    assert [facts.stop_ids for facts in chats] == [policy.chat.stop_ids for policy in here]


def test_what_a_model_refuses_is_raised_as_it_is(group):
    with pytest.raises(RewardError, match="tokens for the reward model"):
        group.scores(0)([[Message("user", "x" * 300), Message("assistant", "y")]])


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_the_share_of_a_process_that_is_lost_is_scored_again(sign, group):
    before, replaced = group.scores(1)(SAID), group.replaced
    os.kill(pids(group)[1], sign)
    assert group.scores(1)(SAID) == before and group.replaced == replaced + 1
    said = group.engine(1).generate(ASKED)
    os.kill(pids(group)[0], sign)
    assert group.engine(1).generate(ASKED) == said and group.replaced == replaced + 2
    assert group.metrics()["cluster/scorers_replaced"] == group.replaced


def preferred(folder, models):  # noqa: F811
    (folder / "held.jsonl").write_text("".join(json.dumps({"prompt": f"{w}?", "answer": w}) + "\n" for w in ("a", "b")))
    more = {"reward": "", "reward_model": str(models / "three"), "gold_model": str(models / "one"), "steps": 2}
    more |= {"eval_dataset": str(folder / "held.jsonl"), "eval_every": 1, "eval_samples": 2, "save_every": 1}
    return partial(rl.run, RL(**options(folder, **more)), algorithms.get("grpo")())


def test_a_run_with_scorers_is_that_of_one_process(folder, models, tmp_path, shared_processes):  # noqa: F811
    job = preferred(folder, models)
    here = job(output=tmp_path / "here", quiet=True).run
    there = job(AsyncOptions(trainers=1, samplers=1, scorers=1), output=tmp_path / "there", quiet=True).run
    assert curve(there) == curve(here) and same(there, here) and read_run(there).samples == read_run(here).samples
    assert "evaluation/gold" in curve(there)[0]
    shares = [row["cluster/busy/scorer0"] for row in read_run(there).metrics[1:]]
    assert all(0 < share <= 1 for share in shares)
    assert {span.work for span in read_run(there).timeline if span.process == "scorer 0"} == {"scoring"}
    assert (there / "logs/scorer-0.log").exists()


ANSWERS = """
from posttrain.environments import Environment
from posttrain.types import Message, Outcome, Sampling, Task


class Answers(Environment):
    seats, trained = ("first", "second"), ("second",)

    def tasks(self, split, seed):
        return [Task((Message("user", f"{n}?"),), id=str(n)) for n in range(4)]

    async def play(self, task, seats, seed):
        said = (await seats["first"].turn(task.prompt)).text
        await seats["second"].turn((Message("user", said),))
        return Outcome({"second": 0.0})


async def asks(completion, reward_context):
    reply = await reward_context.judge("kind").chat([Message("user", completion)], sampling=Sampling(8), seed=5)
    return sum(map(ord, reply.text)) / 1e6
"""


def played(folder, here, **more):  # noqa: F811
    """Answers to what a local model says; the replies of another one to them are the reward."""
    (here / "answers.py").write_text(ANSWERS)
    model_folder(here / "opponent", seed=7)
    named = {"environment": f"{here / 'answers.py'}:Answers", "seats": f"first={here / 'opponent'}"}
    named |= {"judge": f"kind={folder / 'model'}", "reward": f"{here / 'answers.py'}:asks"}
    named |= {"dataset": "", "max_new_tokens": 4, "steps": 2, "save_every": 1}
    return partial(rl.run, RL(**options(folder, **named, **more)), algorithms.get("grpo")())


def test_a_judge_and_a_player_in_a_scorer_say_what_they_say_in_one_process(folder, tmp_path, shared_processes):  # noqa: F811
    job = played(folder, tmp_path)
    here = job(output=tmp_path / "here", quiet=True).run
    there = job(AsyncOptions(trainers=1, samplers=1, scorers=1), output=tmp_path / "there", quiet=True).run
    assert curve(there) == curve(here) and same(there, here) and read_run(there).samples == read_run(here).samples
    assert len({row["rewards"]["asks"] for row in read_run(there).samples}) > 1
    assert {span.work for span in read_run(there).timeline if span.process == "scorer 0"} == {"scoring"}


class Fakes:
    """Actors that answer with the length of each conversation, after some losses."""

    def __init__(self, size, losses):
        self.size, self.losses, self.started = size, losses, []

    def __len__(self):
        return self.size

    def call(self, place, method, *args):
        return place, method, args

    def collect(self, calls, timeout_s):
        return {place: self.answer(place, method, args) for place, (_, method, args) in calls.items()}

    def answer(self, place, method, args):
        if method == "precision":
            return Answer(("float32", "`precision`"))
        if method == "build":
            return Answer(ModelFacts([ScorerFacts("a", 1, True, 10, frozenset())]))
        if self.losses:
            self.losses -= 1
            return Answer(error=Lost(f"scorer {place} is gone"))
        return Answer(([(float(len(each)),) for each in args[1]], 0.5))

    def replace(self, place):
        self.started.append(place)

    def stop(self):
        pass


@pytest.fixture
def fakes(monkeypatch):
    def made(size, losses, *functions):
        found = Fakes(size, losses)
        placed(monkeypatch, found)
        here = Share(gpus=0.0)  # what needs no cluster to be asked
        return found, ScorerGroup(size, lambda precision: Models(), functions=functions, share=here)

    return made


class Slow(Fakes):
    """Its chat models finish one request in each slice; what was called, and how long an answer might take."""

    def __init__(self):
        super().__init__(1, 0)
        self.called, self.most = [], []
        self.lost_at = 0  # the number of the slice with which a process is lost

    def call(self, place, method, *args):
        self.called.append(method)
        return super().call(place, method, *args)

    def collect(self, calls, timeout_s):
        self.most.append(timeout_s)
        return super().collect(calls, timeout_s)

    def answer(self, place, method, args):
        if method == "begin":
            self.left = dict(enumerate(args[1]))
            return Answer()
        if method != "sample":
            return super().answer(place, method, args)
        self.lost_at -= 1
        if self.lost_at == 0:
            return Answer(error=Lost("gone"))
        return Answer(Exchanged(dict([self.left.popitem()]), 3, 0.5))


@pytest.fixture
def slow(monkeypatch):
    found = Slow()
    placed(monkeypatch, found)
    group = ScorerGroup(1, lambda precision: Models(), share=Share(gpus=0.0), timeout_s=8.0)
    found.called.clear()
    found.most.clear()
    return found, group


def test_a_chat_model_may_sample_for_longer_than_a_process_may_take_to_answer(slow):
    actors, group = slow
    told = []
    assert group.engine(0).generate(["a", "b", "c"], told.append) == ["a", "b", "c"]
    assert actors.called == ["begin", "sample", "sample", "sample", "end"] and actors.most == [8.0] * 4
    assert told == [0, 3, 3, 3] and group.metrics()["cluster/busy/scorer0"] > 0.0 and group.replaced == 0


def test_a_process_that_is_lost_in_the_middle_of_a_share_samples_it_again(slow):
    actors, group = slow
    actors.lost_at = 2
    assert group.engine(0).generate(["a", "b", "c"]) == ["a", "b", "c"] and group.replaced == 1
    assert actors.called == [*["begin", "sample", "sample", "end"], "build", *["begin", *["sample"] * 3, "end"]]


class Clocked:
    """An engine and its decoding: a step takes 0.04 s on its own clock, and finishes the request that came last."""

    def __init__(self):
        self.now, self.left, self.closed = 0.0, {}, 0

    @contextlib.contextmanager
    def open(self, on_tokens):
        self.left, self.on_tokens = {}, on_tokens
        yield self
        self.closed += 1

    def add(self, number, request):
        self.left[number] = request.name

    def step(self):
        self.now += 0.04
        self.on_tokens(2)
        return dict([self.left.popitem()])


def asking(name, tokens=1):
    return SimpleNamespace(name=name, token_ids=(1,) * tokens)


def test_a_process_says_after_each_slice_of_time_what_is_done(monkeypatch):
    engine = Clocked()
    monkeypatch.setattr("posttrain.distributed.samplers.time", SimpleNamespace(monotonic=lambda: engine.now))
    process = module.ScoringProcess(0, 1, 1)
    process._models = Models(chats=[SimpleNamespace(engine=engine, model=SimpleNamespace(context=64, name="judge"))])
    process.begin(0, [asking(letter) for letter in "abcde"])
    assert process.sample() == Exchanged({4: "e", 3: "d", 2: "c"}, 6, pytest.approx(0.12))
    assert process.sample() == Exchanged({1: "b", 0: "a"}, 4, pytest.approx(0.08))
    process.begin(0, [asking("f")])
    assert engine.closed == 1 and process.sample().done == {0: "f"}
    process.end()
    assert engine.closed == 2
    with pytest.raises(UserError, match="64"):
        process.begin(0, [asking("g"), asking("h", tokens=64)])
    assert engine.closed == 2  # it was not opened


def test_losses_in_a_row_are_an_error(fakes):
    actors, group = fakes(1, 6)
    with pytest.raises(ProcessLost, match="6 scorers were lost in a row; the last: scorer 0 is gone"):
        group.scores(0)(["a"])
    assert actors.started == [0] * 6
    actors.losses = 5
    assert group.scores(0)(["abc"]) == [(3.0,)]


def test_a_process_that_cannot_load_again_scores_nothing(fakes):
    actors, group = fakes(1, 1)
    answer, tried = actors.answer, []

    def failing(place, method, args):
        tried.append(method)
        return Answer(error=UserError("another file by now")) if method == "build" else answer(place, method, args)

    actors.answer = failing
    for _ in range(2):
        with pytest.raises(UserError, match="another file by now"):
            group.scores(0)(["a"])
    assert tried == ["scores", "build", "build"] and actors.started == [0]
    actors.answer = answer
    assert group.scores(0)(["abc"]) == [(3.0,)]


def asked_at_once(group, *calls):
    """The answers to calls of several threads, in the order in which they came."""
    found = []
    threads = [threading.Thread(target=lambda said=said: found.append(group.scores(0)(said))) for said in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_a_process_that_is_lost_while_two_threads_use_it_is_replaced_once(fakes):
    actors, group = fakes(1, 1)
    assert asked_at_once(group, ["ab"], ["ab"]) == [[(2.0,)]] * 2 and actors.started == [0] and group.replaced == 1


def test_calls_at_the_same_time_go_to_processes_that_nobody_uses(fakes):
    actors, group = fakes(2, 0)
    both, places = threading.Barrier(2), []
    collect = actors.collect

    def together(calls, timeout_s):
        places.extend(calls)
        both.wait(10)
        return collect(calls, timeout_s)

    actors.collect = together
    assert sorted(asked_at_once(group, ["a"], ["bb"])) == [[(1.0,)], [(2.0,)]] and sorted(places) == [0, 1]


def test_shares_are_scored_at_the_same_time(fakes):
    actors, group = fakes(2, 0)
    both, collect = threading.Barrier(2), actors.collect
    actors.collect = lambda calls, timeout_s: (both.wait(10), collect(calls, timeout_s))[1]
    assert group.scores(0)(["a", "bb"]) == [(1.0,), (2.0,)]


def test_a_process_that_is_lost_while_it_starts_is_an_attempt_like_others(fakes):
    actors, group = fakes(1, 1)
    answer, lost = actors.answer, [True]
    starts = lambda method: method == "build" and lost and lost.pop()  # noqa: E731
    actors.answer = lambda place, method, args: (
        Answer(error=Lost("gone")) if starts(method) else answer(place, method, args)
    )
    assert group.scores(0)(["ab"]) == [(2.0,)] and not lost


def test_a_call_waits_for_a_process_that_is_in_use(fakes):
    actors, group = fakes(1, 0)
    collect, using, most = actors.collect, [], []

    def counted(calls, timeout_s):
        using.append(1)
        most.append(len(using))
        time.sleep(0.05)
        using.pop()
        return collect(calls, timeout_s)

    actors.collect = counted
    assert len(asked_at_once(group, ["a"], ["a"], ["a"])) == 3 and most == [1, 1, 1]


def test_where_nothing_else_is_scored_shares_go_to_the_same_processes(fakes):
    actors, group = fakes(3, 0)
    collect, sent = actors.collect, {}

    def noted(calls, timeout_s):
        sent.update({place: args[1] for place, (_, _, args) in calls.items()})
        return collect(calls, timeout_s)

    actors.collect = noted
    for _ in range(20):
        group.scores(0)(["a", "b", "c", "d", "e"])
        assert sent == {0: ["a", "b"], 1: ["c", "d"], 2: ["e"]}


def test_tasks_that_cannot_be_sent_are_an_error_that_says_so(fakes, tmp_path):
    (tmp_path / "mine.py").write_text("def mine(completion): return 0")
    mine = load_reward(f"{tmp_path}/mine.py:mine")
    _, group = fakes(1, 0, mine)
    task = Task((Message("user", "?"),), metadata={"lock": threading.Lock()})
    with pytest.raises(RewardError, match=r"reward 'mine': episodes cannot be sent .* pickle '_thread.lock' object"):
        group.reward(mine, 1.0)([EpisodeGroup(task, (Episode(task, task.prompt),))])


def test_what_each_scores_is_in_its_metrics_and_its_spans(fakes):
    _, group = fakes(2, 0)
    group.scores(0)(["a", "b", "c"])
    found = group.metrics()
    assert found.keys() == {"cluster/scorers_replaced", "cluster/busy/scorer0", "cluster/busy/scorer1"}
    assert min(found["cluster/busy/scorer0"], found["cluster/busy/scorer1"]) > 0.0
    assert [(span.process, span.work) for span in group.ledger.spans()] == [
        ("scorer 0", "scoring"),
        ("scorer 1", "scoring"),
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scorers": 1}, "`scorers` needs trainer processes"),
        ({"trainers": 1, "scorers": -1}, "`scorers` must be 0 or more"),
        ({"trainers": 1, "scorer_gpus": 1.5}, "`scorer_gpus` must be 0 to 1"),
        ({"trainers": 1, "scorer_cpus": 0.0}, "`scorer_cpus` must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(UserError, match=says):
        check_cluster(replace(ONE_PROCESS, **changes))


def test_scorers_that_have_nothing_to_score_are_refused(folder, tmp_path):  # noqa: F811
    job = partial(rl.run, RL(**options(folder, reward="tags")), algorithms.get("grpo")())
    with pytest.raises(UserError, match="`scorers` has nothing to do: pass `reward_model`, `gold_model`, `judge`"):
        job(AsyncOptions(trainers=1, scorers=1), output=tmp_path / "run", quiet=True)
