"""`posttrain plan-cluster` as it is typed."""

import json
import math
import re
import xml.dom.minidom
from dataclasses import replace

import pytest

from posttrain.cli import main
from posttrain.recipes.plan_cluster import HEAD, PlanCluster, run

SMALL = "--gpus 16 --prompts-per-step 16 --completions-per-prompt 4 --mean-tokens 300 --max-new-tokens 2000"
SMALL_PLAN = PlanCluster(gpus=16, prompts_per_step=16, completions_per_prompt=4, mean_tokens=300, max_new_tokens=2000)


def typed(capsys, *words):
    capsys.readouterr()
    code = main(["plan-cluster", *words])
    return code, *capsys.readouterr()


def test_a_plan_has_a_table_and_a_recommendation(capsys):
    code, out, err = typed(capsys, *SMALL.split(), "--price-per-gpu-hour", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    head, mean = re.fullmatch(
        r"(.*; a step has 16 prompts x 4 completions of )(\d+) tokens on average", lines[0]
    ).groups()
    assert head.startswith("7B parameters (28 layers, widths of Qwen2.5-7B) on 16 h100; ")
    trained = run(SMALL_PLAN).best.trained
    assert int(mean) == round(trained / 64)
    assert lines[4].split() == [*HEAD, "tokens/s", "cost/Mtoken"]
    assert any(line.startswith("fastest of the table: asynchronous with ") and "per million" in line for line in lines)
    assert any(line.startswith("synchronous with ") and "times as long a step" in line for line in lines)


def test_other_modes_are_compared_with_the_fastest_one():
    plan = run(PlanCluster(gpus=8, prompts_per_step=8, completions_per_prompt=4, mean_tokens=300, max_staleness=2))
    best, splits = plan.best, list(plan.splits)
    assert best == next(split for split in splits if split.mode != "colocated")
    for mode in {split.mode for split in splits} - {best.mode}:
        fastest = next(split for split in splits if split.mode == mode)
        (line,) = [line for line in plan.lines() if line.startswith(f"{mode} ")]
        assert line.endswith(f": {fastest.step / best.step:.2f} times as long a step")
    # a colocated split that is faster than all others is not the best: posttrain has none
    first = replace(splits[0], mode="colocated", step=best.step / 2)
    also = replace(plan, splits=[first, *splits])
    assert also.best == best
    assert [line for line in also.lines() if line.startswith("fastest of the table on GPUs of their own: ")]
    assert not [line for line in also.lines() if line.startswith("fastest of the table: ")]


def test_the_same_as_json(capsys):
    code, out, _ = typed(capsys, *SMALL.split(), "--json", "--price-per-gpu-hour", "3.5")
    found = json.loads(out)
    assert code == 0 and found["best"] in found["splits"] and found["best"]["mode"] == "asynchronous"
    best = found["best"]
    assert best["cost_per_million_tokens"] == pytest.approx(16 * 3.5 / 3600 * 1e6 / best["tokens_per_second"])
    assert [split["step"] for split in found["splits"]] == sorted(split["step"] for split in found["splits"])
    code, out, _ = typed(capsys, *SMALL.split(), "--json")
    assert json.loads(out)["best"]["gpu_hours_per_million_tokens"] == pytest.approx(
        best["cost_per_million_tokens"] / 3.5
    )


def test_a_plot_is_svg_with_a_line_for_each_mode(capsys, tmp_path):
    path = tmp_path / "plan.svg"
    assert typed(capsys, *SMALL.split(), "--plot", str(path))[0] == 0
    page = xml.dom.minidom.parse(str(path))
    words = [node.firstChild.data for node in page.getElementsByTagName("text")]
    assert {"colocated", "synchronous", "asynchronous", "GPUs that train"} <= {*words}
    assert words[0] == "Trained tokens/s of 7B parameters on 16 h100"
    assert len([p for p in page.getElementsByTagName("path") if p.getAttribute("class").startswith("line")]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu h10", "unknown gpu 'h10'; did you mean 'h100'?"),
        ("--gpus 0", "--gpus must be 1 or more; got 0"),
        ("--tensor-parallel 3", "--tensor-parallel must be a power of two, as heads are divided; got 3"),
        ("--weight-sync nccl", "--weight-sync must be one of broadcast, channel; got 'nccl'"),
        ("--length-spread 20", "--length-spread must be 0 to 3; got 20.0"),
        ("--mfu 40", "--mfu must be above 0 to 1; got 40.0"),
        ("--model-parameters 1e15", "--model-parameters must be 1e+06 to below 1e+13; got 1000000000000000.0"),
        ("--model-parameters 7", "--model-parameters must be 1e+06 to below 1e+13; got 7.0"),
        ("--model-parameters nan", "--model-parameters must be 1e+06 to below 1e+13; got nan"),
        ("--max-new-tokens 16000", "prompt and completion may have 16512 tokens, which must fit in a pass; pass --m"),
        ("--plot plan.png", "--plot must name a .svg file in a folder that exists; got 'plan.png'"),
        ("--plot nowhere/plan.svg", "--plot must name a .svg file in a folder that exists"),
        (
            "--model-parameters 400e9 --gpus 64",
            "a row of 16384 tokens needs 110 GB in a trainer besides its shard, and",
        ),
        (
            "--model-parameters 400e9 --gpus 64 --microbatch-tokens 4096 --max-new-tokens 3000",
            "400B parameters do not fit on 64 h100: the trainers need",
        ),
        ("--gpus 1", "7B parameters do not fit on 1 h100: the trainers need 3 of them and a sampler 1; pass --gpus 4"),
        (
            "--model-parameters 70e9 --tensor-parallel 2 --max-new-tokens 15000",
            "a sampler of 2 GPUs has no room for a sequence of 15512 tokens; pass --tensor-parallel 4",
        ),
        ("--microbatch-tokens 9000000", "a row of 9000000 tokens needs"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, message):
    code, out, err = typed(capsys, *words.split())
    assert (code, out) == (2, "") and err.startswith(f"posttrain: {message}") and err.count("\n") == 1


def test_what_is_not_built_is_said(capsys):
    large = "--model-parameters 70e9 --gpus 64 --prompts-per-step 16 --completions-per-prompt 2 --mean-tokens 300"
    out = typed(capsys, *large.split(), "--max-new-tokens", "2000")[1]
    loads = "WARNING: each trainer loads the whole model into host memory before its GPU gets its shard: 140 GB times"
    assert loads in out
    assert "weights broadcast over gloo at 1.80 GB/s): does not fit, a sampler needs 2 GPUs" in out
    assert "loads the whole model" not in typed(capsys, *large.replace("70e9", "30e9").split())[1]


def test_completions_that_are_mostly_cut_are_said():
    cut = "completions have 300 tokens on average (`mean_tokens`) before most are cut at 299 (`max_new_tokens`)"
    assert cut in run(replace(SMALL_PLAN, max_new_tokens=299)).warnings()
    assert cut not in run(replace(SMALL_PLAN, max_new_tokens=300)).warnings()


def test_the_speed_of_posttrain_as_it_is_now_is_said():
    """Samplers of one GPU each, to which 14 GB of weights are broadcast at 1.8 GB/s, in a binomial tree."""
    plan = run(SMALL_PLAN)
    now = plan.now
    assert now.of_sampler == 1 and now.mode != "colocated"
    levels = math.ceil(math.log2(now.samplers + 1))
    assert levels > 1 and now.sync == pytest.approx(2 * plan.cluster.shape.parameters * levels / 1.8e9, rel=0.01)
    assert now.tokens_per_second < plan.best.tokens_per_second
    same = run(replace(SMALL_PLAN, weight_sync="channel", tensor_parallel=1))
    assert now == same.best
    (line,) = [line for line in plan.lines() if line.startswith("posttrain as it is now")]
    assert f"{now.tokens_per_second:,.0f} trained tokens/s" in line and plan.summary()["now"]["step"] == now.step


def test_a_model_is_read_from_its_configuration(tmp_path):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = run(PlanCluster(model=str(tmp_path), gpus=1, prompts_per_step=4, max_new_tokens=1000))
    shape = plan.cluster.shape
    assert (shape.layers, shape.hidden, shape.parameters) == (2, 64, 100 * 64 + 2 * (64 * 192 + 64 * 384 + 128) + 64)
    assert [split.mode for split in plan.splits] == ["colocated"] and plan.best is plan.splits[0]
    assert plan.now.mode == "colocated"
