"""The harness's `LM` by our engine, against the network itself; its results as ours; a run where it is installed."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaForCausalLM

from posttrain.engine.policy import load_policy
from posttrain.errors import UserError
from posttrain.evaluation.accuracy import difference
from posttrain.options.evaluation import Evaluate
from posttrain.recipes.evaluate import lm_eval, run
from posttrain.recipes.evaluate.result import _gain
from posttrain.statistics import mean_interval
from tests.recipes.folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("harness") / "model", context=32))


@pytest.fixture(scope="module")
def answers(folder):
    policy = load_policy(folder, precision="float32", device="cpu")
    return lm_eval._Answers(policy, Evaluate(max_new_tokens=8), None)


@pytest.fixture(scope="module")
def own(folder):
    """The network's own logprobs of the tokens from `start` on, and what is most likely at each place."""
    network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logprobs(ids, start):
        with torch.inference_mode():
            logits = network(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return [float(logits[i - 1, ids[i]]) for i in range(start, len(ids))], logits.argmax(-1).tolist()

    return logprobs


def asked(*args):
    return [SimpleNamespace(args=one) for one in args]


def test_a_continuation_has_the_networks_logprob_and_says_whether_it_is_the_most_likely(answers, own):
    encode = answers._encode
    context, rest = encode("two and"), encode(" three")
    logprobs, likely = own(context + rest, len(context))
    greedy = [*context, likely[len(context) - 1]]
    most = answers._tokenizer.decode(greedy[-1:])
    (value, is_greedy), (_, best) = answers.loglikelihood(asked(("two and", " three"), ("two and", most)))
    assert value == pytest.approx(sum(logprobs), abs=1e-4) and not is_greedy
    assert best == (encode("two and" + most) == greedy)


def test_white_space_between_both_is_the_continuations(answers):
    (one,), (other,) = (answers.loglikelihood(asked(pair)) for pair in (("two ", "three"), ("two", " three")))
    assert one == other


def test_without_a_context_the_first_token_follows_the_end_of_text(answers, own):
    ids = [answers._start, *answers._encode("two")]
    assert answers.loglikelihood(asked(("", "two")))[0][0] == pytest.approx(sum(own(ids, 1)[0]), abs=1e-4)


def test_a_context_that_is_full_loses_its_beginning(answers, own):
    context, rest = "abc" * 20, "de"
    ids = answers._encode(context + rest)[-31:]
    assert answers.loglikelihood(asked((context, rest)))[0][0] == pytest.approx(sum(own(ids, 29)[0]), abs=1e-4)


def test_every_token_of_a_text_counts_once_behind_all_that_fits(answers, own):
    text = "the quick brown fox jumps over the lazy dog, twice"
    ids = [answers._start, *answers._encode(text)]
    assert len(ids) == 51
    # 30 tokens behind what is before them, then the other 20 behind 11
    expected = sum(own(ids[:31], 1)[0]) + sum(own(ids[20:], 11)[0])
    assert answers.loglikelihood_rolling(asked((text,))) == [pytest.approx(expected, abs=1e-4)]


def test_a_completion_ends_before_its_stop_string(answers):
    (whole,) = answers.generate_until(asked(("two", {"max_gen_toks": 6, "until": []})))
    assert len(whole) > 2
    (cut,) = answers.generate_until(asked(("two", {"max_gen_toks": 6, "until": [whole[2]]})))
    assert cut == whole.partition(whole[2])[0]
    (sampled,) = answers.generate_until(asked(("two", {"temperature": 0.0, "do_sample": False, "max_gen_toks": 6})))
    assert sampled == whole


FOUND = {
    "results": {
        "sums": {
            "alias": "sums",
            "acc,none": 0.5,
            "acc_stderr,none": 0.2,
            "f1,strict": 0.25,
            "f1_stderr,strict": "N/A",
        },
        "part": {"alias": "part", "acc,none": 1.5, "acc_stderr,none": 0.1},
    },
    "n-samples": {"sums": {"original": 9, "effective": 4}},
    "samples": {"sums": [{"doc_id": n, "filter": "none", "acc": float(n in (0, 3))} for n in (1, 0, 3, 2)]},
}


def test_metrics_of_the_harness_as_ours():
    found = lm_eval.accuracy_of("sums", FOUND)
    assert (found.measure, found.accuracy, found.n) == ("acc", 0.5, 4) and found.rates == (1.0, 0.0, 0.0, 1.0)
    assert found.ci95 == mean_interval([1.0, 0.0, 0.0, 1.0])
    f1, part = found.measures
    assert (f1.name, f1.value, f1.ci95) == ("f1,strict", 0.25, (0.25, 0.25))  # without a standard error or documents
    assert (part.name, part.value) == ("acc part", 1.5) and part.ci95 == pytest.approx(
        (1.5 - 0.196, 1.5 + 0.196), abs=1e-4
    )
    assert math.isnan(found.unparsed)


def test_without_the_package_it_is_said_what_to_install(monkeypatch, folder, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package lm_eval; type: pip install 'posttrain\[lm-eval\]'"):
        run(Evaluate(model=folder, suite="lm-eval:sums"), output=tmp_path / "run", quiet=True)


TASK = """
task: tiny_sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}} ="
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
"""


def test_a_task_of_a_file_without_a_network(folder, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [{"question": f"{n} + 1", "choices": [f" {n + 1}", f" {n}"], "label": n % 2} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "sums.yaml"
    task.write_text(TASK.replace("DATA", str(tmp_path / "sums.jsonl")))
    config = Evaluate(
        model=folder, baseline=folder, suite=f"lm-eval:{task}?num_fewshot=0", limit=3, precision="float32"
    )
    found = run(config, output=tmp_path / "run", quiet=True)
    (numbers,) = found.summary()["suites"].values()
    assert numbers["n"] == 3 and "acc" in numbers and numbers["difference"]["greedy"]["value"] == 0.0
    for name, said in (
        ("nothing", "unknown task of lm-eval 'nothing'"),
        (str(tmp_path / "no.yaml"), "there is no file"),
    ):
        with pytest.raises(UserError, match=said):
            run(Evaluate(model=folder, suite=f"lm-eval:{name}"), output=tmp_path / "other", quiet=True)


def test_without_a_context_a_text_begins_once(answers, own, monkeypatch):
    monkeypatch.setattr(answers, "_begins", [answers._start])  # a tokenizer that adds it, such as Llama's
    ids = [answers._start, *answers._tokenizer.encode("two", add_special_tokens=False)]
    assert answers.loglikelihood(asked(("", "two")))[0][0] == pytest.approx(sum(own(ids, 1)[0]), abs=1e-4)


@pytest.mark.parametrize(("prompt", "most", "kept", "room"), [(10, 32768, 10, 21), (40, 32768, 16, 15), (40, 6, 25, 6)])
def test_an_answers_room_gives_way_before_its_prompt(answers, monkeypatch, prompt, most, kept, room):
    """Of a context of 32, of which a request has 31."""
    seen = []
    monkeypatch.setattr(answers, "_encode", lambda text: list(range(3, 3 + len(text))))
    monkeypatch.setattr(answers, "_generate", lambda some: seen.extend(some) or [SimpleNamespace(token_ids=())])
    answers.generate_until(asked(("a" * prompt, {"max_gen_toks": most})))
    assert seen[0].token_ids == tuple(range(3 + prompt - kept, 3 + prompt))
    assert seen[0].sampling.max_new_tokens == room


def test_a_metric_that_is_no_rate_is_not_taken_for_one():
    scores = [12.5, 0.5]
    results = {"bleu_max,none": 6.5, "acc,none": 0.5}
    samples = [{"doc_id": n, "filter": "none", "bleu_max": one, "acc": float(n)} for n, one in enumerate(scores)]
    found = lm_eval.accuracy_of("t", {"results": {"t": {"acc,none": 0.5, **results}}, "samples": {"t": samples}})
    (bleu,) = found.measures
    assert (bleu.values, bleu.rate) == ((12.5, 0.5), False)


@pytest.mark.parametrize(
    ("errors", "half", "told"), [((0.3, 0.4), 0.98, "+1.000 (+0.020 to "), (("N/A",) * 2, 0, "+1.000")]
)
def test_a_metric_without_documents_has_both_intervals_in_its_difference(errors, half, told):
    before, after = (
        lm_eval.accuracy_of(
            "wiki",
            {
                "results": {"wiki": {"perplexity,none": value, "perplexity_stderr,none": error}},
                "n-samples": {"wiki": {"effective": 9}},
            },
        )
        for value, error in zip((7.0, 8.0), errors, strict=True)
    )
    found = difference(before, after)
    assert (found.value, found.n) == (1.0, 9)
    assert found.ci95 == pytest.approx((1 - half, 1 + half), abs=1e-3)
    assert _gain(found).startswith(told) and ("(" in _gain(found)) == (half > 0)


def test_a_task_that_would_execute_answers_is_refused_before_a_model_is_loaded(folder, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "sums.jsonl").write_text(json.dumps({"question": "1 + 1", "choices": [" 2", " 1"], "label": 0}))
    task = tmp_path / "sums.yaml"
    task.write_text(TASK.replace("DATA", str(tmp_path / "sums.jsonl")) + "unsafe_code: true\n")
    with pytest.raises(UserError, match="'tiny_sums' of lm-eval executes what a model wrote"):
        run(Evaluate(model=folder, suite=f"lm-eval:{task}"), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_options_that_the_harness_does_not_have_are_refused(folder, tmp_path):
    config = Evaluate(model=folder, suite="lm-eval:sums", pass_at="1,8", reward="numbers")
    with pytest.raises(UserError, match="which has no `reward`, `pass_at`; leave it out"):
        run(config, output=tmp_path / "run", quiet=True)
