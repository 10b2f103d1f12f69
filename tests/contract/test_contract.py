"""The correctness contract on a tiny model; and for every item, faults that it has to find.

The items are those of `posttrain verify`, which runs them on the user's model. Here each is also shown what it is
there for: a fault of the kind that other tools have had is planted, and the item must not pass.
"""

import dataclasses
import sys

import pytest
import torch

from posttrain import fast_paths
from posttrain.data.chat import ChatFormat
from posttrain.data.packing import Example
from posttrain.engine import transformers
from posttrain.engine.kv_cache import PrefixCache
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.episodes import episodes, seats
from posttrain.episodes.seats import PolicySeat
from posttrain.errors import UserError
from posttrain.fast_paths import FAST_PATHS, without
from posttrain.models import lora, reference
from posttrain.models.attention import FamilyAttention
from posttrain.models.language_model import LanguageModel
from posttrain.models.logprobs import TokenLogprobs
from posttrain.objectives import reduce
from posttrain.recipes.verify import ITEMS, Item, Verify, run, subject_of
from posttrain.recipes.verify.failures import compare
from posttrain.recipes.verify.numerics import cosine
from posttrain.recipes.verify.tokens import in_calls
from posttrain.rewards import combine
from posttrain.training import policy
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Score, Turn
from tests.data.families import of_family
from tests.matrix.families import save_family
from tests.recipes.folders import model_folder

failures = sys.modules[compare.__module__]  # the package has an item of the same name
QUICK = [name for name in ITEMS if name != "resume"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("verify") / "model"))


def checked(folder, name, precision="float32") -> Item:
    return ITEMS[name](subject_of(Verify(model=folder, precision=precision, max_new_tokens=4)))


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", QUICK)
def test_a_right_trainer_passes(folder, name, precision):
    if name == "weight update":
        pytest.importorskip("peft")
    item = checked(folder, name, precision)
    assert item.passed, item.detail
    assert item.measured <= item.bound and item.name == name


@pytest.mark.parametrize("family", ["Qwen3", "Gemma 3", "Mixtral"])
def test_a_right_trainer_passes_on_other_families(family, tmp_path):
    model = str(save_family(family, tmp_path / "model"))
    failed = [item.detail for item in (checked(model, name) for name in QUICK) if not item.passed]
    assert not failed


def without_temperature(monkeypatch):
    right = LanguageModel.logprobs_at

    def at_one(self, states, row, temperature=1.0, **options):
        return right(self, states, row, **options)

    monkeypatch.setattr(LanguageModel, "logprobs_at", at_one)


def without_shared_prefix(monkeypatch):
    """Completions that do not see their prompt."""
    right = LanguageModel.states

    def blind(self, row):
        lengths = [(0, [prefix, *branches]) for prefix, branches in row.families]
        return right(self, dataclasses.replace(row, families=lengths))

    monkeypatch.setattr(LanguageModel, "states", blind)


def rounded_weights(monkeypatch):
    right = LanguageModel.logprobs

    def rounded(self, row, temperature=1.0):
        found = right(self, row, temperature)
        return TokenLogprobs(found.logprobs.bfloat16().float(), found.entropy)

    monkeypatch.setattr(LanguageModel, "logprobs", rounded)


def mean_of_the_micro_batch(monkeypatch):
    """The error of naive gradient accumulation: every micro-batch is averaged for itself."""
    right = reduce.sequence_mean
    monkeypatch.setattr(reduce, "sequence_mean", lambda v, length, denominator: right(v, length, (1 / length).sum()))


def test_the_cosine_of_gradients_by_hand():
    one, two = (
        {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])},
        {"a": torch.tensor([3.0, 2.0]), "b": torch.tensor([0.0])},
    )
    assert cosine(one, two) == pytest.approx(9 / (5 * 13**0.5))


@pytest.mark.parametrize("path", ["all", *(pytest.param(name, marks=pytest.mark.thorough) for name in FAST_PATHS)])
@pytest.mark.parametrize("name", QUICK)
def test_a_right_trainer_passes_without_its_fast_paths(folder, name, path):
    if name == "weight update":
        pytest.importorskip("peft")
    with without(path):
        item = checked(folder, name, "bfloat16" if path == "packed weights" else "float32")
    assert item.passed, item.detail


def lost_stop_token(monkeypatch):
    right = policy.example_of

    def without(trajectory):
        example = right(trajectory)
        return Example(example.prefix, example.continuation, (*example.learned[:-1], False))

    monkeypatch.setattr(policy, "example_of", without)


def learned_tool_results(monkeypatch):
    right = policy.example_of

    def everything(trajectory):
        example = right(trajectory)
        return Example(example.prefix, example.continuation, (True,) * len(example.continuation))

    monkeypatch.setattr(policy, "example_of", everything)


def mask_one_too_late(monkeypatch):
    right = ChatFormat.training_ids

    def shifted(self, messages, **options):
        found = right(self, messages, **options)
        return found._replace(mask=[False, *found.mask[:-1]])

    monkeypatch.setattr(ChatFormat, "training_ids", shifted)


def encoded_again(monkeypatch):
    """The turn's text is encoded in place of the ids that were sampled."""
    right = PolicySeat.turn

    async def turn(self, messages, tools=(), **own):
        reply = await right(self, messages, tools, **own)
        last = self.turns[-1]
        again = tuple(self._chat.tokenizer.encode(last.text, add_special_tokens=False))
        self.turns[-1] = dataclasses.replace(last, token_ids=again, logprobs=(-1.0,) * len(again))
        self._branch[-1] = self.turns[-1]
        return reply

    monkeypatch.setattr(PolicySeat, "turn", turn)


def sampler_logprobs_as_old(monkeypatch):
    """The ratio's denominator comes from the sampler, which is never the trainer to the last bit."""
    right = policy.Tokens
    monkeypatch.setattr(policy, "Tokens", lambda new, old, *rest, **named: right(new, old + 1e-6, *rest, **named))


def engine_at_another_temperature(monkeypatch):
    right = transformers.TransformersDecoding.add

    def add(self, number, request):
        hot = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, temperature=1.5))
        right(self, number, hot)

    monkeypatch.setattr(transformers.TransformersDecoding, "add", add)


def failures_scored_0(monkeypatch):
    right = combine.score_all

    async def forgiving(reward, groups, *, timeout_s):
        try:
            return await right(reward, groups, timeout_s=timeout_s)
        except Exception:
            return [[Score(0.0)] * len(group.episodes) for group in groups]

    monkeypatch.setattr(combine, "score_all", forgiving)


def wrapped_causes(monkeypatch):
    right = Scheduler.run

    def grouped(self, client, coroutine):
        try:
            return right(self, client, coroutine)
        except Exception as error:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [error]) from error

    monkeypatch.setattr(Scheduler, "run", grouped)


def stale_sampler(monkeypatch):
    """The sampler goes on with the weights that it was given at first."""
    import copy

    right = TransformersEngine.__init__
    monkeypatch.setattr(
        TransformersEngine,
        "__init__",
        lambda self, model, *given, **named: right(self, copy.deepcopy(model), *given, **named),
    )


def lost_small_updates(monkeypatch):
    """Masters that are rounded to bfloat16 after each step."""
    right = MasterAdamW.step

    def step(self, lr, *, norm=None):
        norm = right(self, lr)
        with torch.no_grad():
            for master in self.masters:
                master.copy_(master.bfloat16())
        return norm

    monkeypatch.setattr(MasterAdamW, "step", step)


def adapter_that_stays_on(monkeypatch):
    monkeypatch.setattr(
        reference.AdapterOff, "logprobs", lambda self, row, temperature: self.body.logprobs(row, temperature).logprobs
    )


def adapter_that_is_not_the_identity(monkeypatch):
    right = lora.add_lora

    def random(model, *given, **named):
        adapted = right(model, *given, **named)
        with torch.no_grad():
            for _, p in adapted.trainable():
                p.add_(0.05)
        return adapted

    monkeypatch.setattr("posttrain.recipes.verify.engines.add_lora", random)


def lost_episodes_in_denominators(monkeypatch):
    """As many as were asked for are counted."""
    right = policy.Counts
    monkeypatch.setattr(policy, "Counts", lambda rows, *rest: right(-(-rows // 3) * 3, *rest))


def lost_episodes_as_others(monkeypatch):
    """One that failed is taken for the one beside it."""
    right = episodes._play_all

    async def play(*given):
        found = await right(*given)
        whole = next(each for each in found if not isinstance(each, Exception))
        return [whole if isinstance(each, Exception) else each for each in found]

    monkeypatch.setattr(episodes, "_play_all", play)


def context_of_a_branch_trained(monkeypatch):
    """What a later branch repeats of earlier replies is trained again."""
    right = policy.example_of

    def again(trajectory):
        if not trajectory.turns[0].restarts:
            return right(trajectory)
        return Example.whole(trajectory.token_ids, (False, *[True] * (len(trajectory.token_ids) - 1)))

    monkeypatch.setattr(policy, "example_of", again)


def inserted_text_trained(monkeypatch):
    """What was inserted into a message is taken for what the policy said."""
    right = PolicySeat._sample

    async def sample(self, context_ids, sampling, *rest):
        reply = await right(self, context_ids, sampling, *rest)
        last = self.turns[-1]
        if context_ids == tuple(self._chat.inserted_ids(" [a tool: 7]\n")):
            ids, logprobs = context_ids + last.token_ids, (-1.0,) * len(context_ids) + last.logprobs
            last = dataclasses.replace(last, context_ids=(), token_ids=ids, logprobs=logprobs)
        self.turns[-1] = self._branch[-1] = last
        return reply

    monkeypatch.setattr(PolicySeat, "_sample", sample)


def truncated_turns_trained(monkeypatch):
    """What a truncated distribution gave is trained as if the whole one had."""
    monkeypatch.setattr(seats, "Turn", lambda *fields, learned, **named: Turn(*fields, **named))


def temperature_of_a_turn_left_out(monkeypatch):
    """Every token is trained at the temperature of the run."""
    monkeypatch.setattr(seats, "Turn", lambda *fields, temperature, **named: Turn(*fields, **named))


def remembered_otherwise(monkeypatch):
    """Keys and values of other tokens than those that a prompt begins with."""
    right = PrefixCache.longest

    def longest(self, token_ids, adapter):
        found = right(self, token_ids, adapter)
        return found and dataclasses.replace(found, keys={n: keys.roll(1, dims=1) for n, keys in found.keys.items()})

    monkeypatch.setattr(PrefixCache, "longest", longest)


def draws_by_slot(monkeypatch):
    """Noise that depends on the place in the batch."""
    right = transformers.uniforms
    monkeypatch.setattr(transformers, "uniforms", lambda seeds, at: right([s + i for i, s in enumerate(seeds)], at))


FAULTS = [
    ("logprobs", without_temperature),
    ("logprobs", without_shared_prefix),
    ("logprobs", rounded_weights),
    ("gradients", mean_of_the_micro_batch),
    ("gradients", without_shared_prefix),
    ("gradients", without_temperature),
    ("loss mask", lost_stop_token),
    ("loss mask", learned_tool_results),
    ("loss mask", mask_one_too_late),
    ("first update", sampler_logprobs_as_old),
    ("first update", engine_at_another_temperature),
    ("first update", without_temperature),
    ("first update", temperature_of_a_turn_left_out),
    ("same tokens", encoded_again),
    ("same tokens", learned_tool_results),
    ("failures", failures_scored_0),
    ("failures", wrapped_causes),
    ("lost episodes", lost_episodes_in_denominators),
    ("lost episodes", lost_episodes_as_others),
    ("trained once", learned_tool_results),
    ("trained once", lost_stop_token),
    ("trained once", context_of_a_branch_trained),
    ("trained once", inserted_text_trained),
    ("trained once", truncated_turns_trained),
    ("arrivals", remembered_otherwise),
    ("arrivals", draws_by_slot),
    ("weight update", stale_sampler),
    ("weight update", lost_small_updates),
    ("weight update", adapter_that_stays_on),
    ("weight update", adapter_that_is_not_the_identity),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_is_found(folder, name, fault, monkeypatch):
    if name == "weight update":
        pytest.importorskip("peft")
    fault(monkeypatch)
    item = checked(folder, name)
    assert not item.passed, item.detail


def test_every_item_has_a_fault_that_it_finds():
    assert {name for name, _ in FAULTS} == set(QUICK)


def test_without_peft_the_item_says_what_it_did_not_check(folder, monkeypatch):
    monkeypatch.setattr(lora, "peft", None)
    item = checked(folder, "weight update")
    assert item.passed and "an adapter's updates were not checked: adapters need peft; type: pip install" in item.detail


def finished_run(path, *, loss=0.5, bit="00", steps=(1, 2), grad_norm=1.0):
    """The two files of a finished run that are compared."""
    import json

    last = path / "checkpoints" / "step-000002"
    last.mkdir(parents=True)
    rows = [{"step": s, "loss": loss, "grad_norm": grad_norm, "seconds/step": hash(str(path))} for s in steps]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sums = {"masters.safetensors": {"sha256": bit}, "optimizer.safetensors": {"sha256": "11"}}
    (last / "checksums.json").write_text(json.dumps(sums))
    return path


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"loss": 0.5000001}, "metrics differ at step 1"),
        ({"bit": "01"}, "masters.safetensors differs"),
        ({"steps": (1, 1, 2)}, "the resumed run has the steps [1, 1, 2]"),
        ({"steps": (1,)}, "the resumed run has the steps [1]"),
    ],
)
def test_runs_that_differ_are_told_apart(tmp_path, options, complaint):
    through = finished_run(tmp_path / "through")
    assert compare(through, finished_run(tmp_path / "same"), 2) == []
    assert complaint in compare(through, finished_run(tmp_path / "killed", **options), 2)


def test_two_runs_that_learned_nothing_prove_nothing(tmp_path):
    idle = [finished_run(tmp_path / name, grad_norm=0.0) for name in ("through", "killed")]
    assert compare(*idle, 2) == ["the run learned nothing, so nothing could differ"]


@pytest.mark.parametrize(
    "options",
    [{"prompts": 0}, {"prompts": 5}, {"completions_per_prompt": 1}, {"temperature": 0.0}, {"resume_steps": 3}],
)
def test_options_that_check_nothing_are_refused(folder, options):
    with pytest.raises(UserError, match="must be"):
        run(Verify(model=folder, **options))


def test_an_item_that_cannot_be_checked_does_not_pass_and_the_others_are_checked(folder, monkeypatch):
    def refuses(subject):
        raise UserError("the template refuses this")

    def fine(subject):
        return Item("b", True, 0.0, 1.0, "all is well")

    monkeypatch.setattr("posttrain.recipes.verify.ITEMS", {"a": refuses, "b": fine})
    first, second = run(Verify(model=folder), quiet=True)
    assert first == Item("a", False, None, None, "the template refuses this") and second.passed
    assert first.line() == "FAILED  a: not measured; the template refuses this"
    assert second.line() == "passed  b: 0 (bound 1); all is well"


def test_shared_prompts_that_are_worse_in_bfloat16_alone_are_found(folder, monkeypatch):
    """A backward pass that is right in float32 and loses half of the values' gradient where numbers are rounded."""
    right = FamilyAttention.backward

    def lossy(self, grad, q, k, v, scoring):
        grad_q, grad_k, grad_v, grad_sinks = right(self, grad, q, k, v, scoring)
        lost = 0.5 if grad.dtype == torch.bfloat16 and self._families[0][1] else 1.0
        return grad_q, grad_k, lost * grad_v, grad_sinks

    monkeypatch.setattr(FamilyAttention, "backward", lossy)
    item = checked(folder, "gradients", "bfloat16")
    assert not item.passed, item.detail


@pytest.mark.slow
@pytest.mark.parametrize("switched_off", ["", "all"])
def test_verify_whole(folder, switched_off, monkeypatch):
    pytest.importorskip("peft")
    right, children = failures._started, list[str]()

    def start(path, options):
        children.append(fast_paths.for_children()["POSTTRAIN_WITHOUT"])
        return right(path, options)

    monkeypatch.setattr(failures, "_started", start)
    items = run(Verify(model=folder, precision="float32", max_new_tokens=6, without=switched_off), quiet=True)
    assert children == [",".join(sorted(FAST_PATHS if switched_off else []))] * 3
    assert [item.name for item in items] == list(ITEMS)
    assert all(item.passed for item in items), [item.line() for item in items if not item.passed]


@pytest.mark.timeout(1800)  # about five minutes each where nothing else runs
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("switched_off", ["", "all"])
def test_the_packaged_model_keeps_the_contract(switched_off):
    pytest.importorskip("peft")
    items = run(Verify(without=switched_off), quiet=True)
    failed = [item.line() for item in items if not item.passed]
    if failed:
        pytest.fail("\n".join(failed))  # in full: pytest shortens what an assertion shows


@pytest.mark.parametrize("name", ["smollm3", "hermes", "qwen2.5", "qwen3", "llama3", "mistral-v3"])
def test_calls_of_tools_are_masked_right_by_each_template_that_knows_them(name):
    found, told = in_calls(ChatFormat(of_family(name)))
    assert found == [] and "a call of a tool is learned" in told


def test_a_template_without_calls_is_told():
    assert in_calls(ChatFormat(of_family("smollm2")))[1].startswith("the chat template knows no tool calls")


def learning_results(chat):
    right = chat.training_examples
    return lambda messages: [e._replace(mask=[True] * len(e.mask)) for e in right(messages)]


def learning_answers_alone(chat):
    right = chat.training_ids
    return lambda messages: [right(messages, train_on="last")]


@pytest.mark.parametrize("fault", [learning_results, learning_answers_alone])
def test_a_mask_that_is_wrong_where_tools_are_called_is_found(monkeypatch, fault):
    chat = ChatFormat(of_family("qwen2.5"))
    monkeypatch.setattr(chat, "training_examples", fault(chat))
    assert in_calls(chat)[0]
