"""Plan a run on a cluster of GPUs: how many train, how many sample, seconds and cost of a step.

    posttrain plan-cluster --model-parameters 7e9 --gpus 64 --gpu h100
    posttrain plan-cluster --model-parameters 70e9 --gpus 256 --max-new-tokens 32000 --microbatch-tokens 32768

A cost model of sampling, weight sync, scoring, update and wait, from published figures of the GPUs, and a
discrete-event simulation on it (docs/scaling.md). Nothing is loaded or run. Left out: mixtures of experts, adapters,
environments of several turns, evaluations, failures.
"""

from dataclasses import replace
from pathlib import Path

from posttrain.errors import UserError, unknown
from posttrain.models.footprint import read_shape
from posttrain.options.tools import PlanCluster
from posttrain.planning.cluster.gpus import GPUCluster
from posttrain.planning.cluster.published import CHANNEL, GPUS, REACHED, dense_shape
from posttrain.planning.cluster.result import ClusterPlan
from posttrain.planning.cluster.splits import COLOCATED, Search
from posttrain.planning.cluster.workload import Workload
from posttrain.report.chart import Chart, Series, picture

MOST_GPUS = 1 << 16  # that are looked at to say how many would do


def run(config: PlanCluster) -> ClusterPlan:
    """Plan; the plot is written last.

    Raises:
        UserError: an option is wrong, or the model does not fit on the GPUs.
    """
    if config.gpu not in GPUS:
        raise unknown("gpu", config.gpu, GPUS)
    if config.plot and (not config.plot.endswith(".svg") or not Path(config.plot).parent.is_dir()):
        raise UserError(f"--plot must name a .svg file in a folder that exists; got '{config.plot}'")
    shape = read_shape(config.model) if config.model else dense_shape(config.model_parameters)
    work = Workload(
        prompts=config.prompts_per_step,
        completions=config.completions_per_prompt,
        prompt_tokens=config.prompt_tokens,
        mean_tokens=config.mean_tokens,
        spread=config.length_spread,
        max_tokens=config.max_new_tokens,
        microbatch_tokens=config.microbatch_tokens,
        passes=config.logprob_passes,
        scoring_seconds=config.scoring_seconds,
    )
    reached = replace(REACHED, mfu=config.mfu, bandwidth=config.bandwidth_share)
    channel = CHANNEL if config.weight_sync == "channel" else 0.0
    cluster = GPUCluster(GPUS[config.gpu], reached, shape, work, config.max_sequences, channel)
    trainers, sizes = _fewest(config, cluster)
    splits = Search(cluster, config.gpus, trainers, sizes, config.max_staleness).splits()
    if not splits:
        raise UserError(
            f"{shape.parameters / 1e9:.3g}B parameters do not fit on {config.gpus} {config.gpu}: the trainers need "
            f"{trainers} of them and a sampler {sizes[0]}; pass --gpus {trainers + sizes[0]} or more"
        )
    now = None
    if cluster.cache_tokens(1) >= work.longest:
        built = Search(replace(cluster, channel=CHANNEL), config.gpus, trainers, [1], config.max_staleness).splits()
        now = next((split for split in built if split.mode != COLOCATED or config.gpus == 1), None)
    plan = ClusterPlan(config, cluster, trainers, sizes[0], splits, now)
    if config.plot:
        series: list[Series] = []
        for mode in dict.fromkeys(split.mode for split in splits):
            points = sorted((s.trainers, s.tokens_per_second) for s in splits if s.mode == mode)
            series.append(Series(mode, points))
        title = f"Trained tokens/s of {shape.parameters / 1e9:.3g}B parameters on {config.gpus} {config.gpu}"
        drawn = picture(Chart(title, series, unit="GPUs that train"))
        Path(config.plot).write_text(drawn, encoding="utf-8")
    return plan


def _fewest(config: PlanCluster, cluster: GPUCluster) -> tuple[int, list[int]]:
    """The fewest GPUs of all trainers, and those of a sampler that are compared: up to a node, or what it needs."""
    trainers = cluster.fewest_trainers(MOST_GPUS)
    if not trainers:
        needed = cluster.row() + cluster.gathered()
        raise UserError(
            f"a row of {config.microbatch_tokens} tokens needs {needed / 1e9:.0f} GB in a trainer besides its shard, "
            f"and {cluster.usable / 1e9:.0f} GB of a {config.gpu} may be planned; pass a smaller --microbatch-tokens"
        )
    if config.tensor_parallel and cluster.cache_tokens(config.tensor_parallel) < cluster.work.longest:
        raise UserError(
            f"a sampler of {config.tensor_parallel} GPUs has no room for a sequence of {cluster.work.longest} tokens; "
            f"pass --tensor-parallel {cluster.fewest_of_sampler(MOST_GPUS)}"
        )
    if config.tensor_parallel:
        return trainers, [config.tensor_parallel]
    fewest = cluster.fewest_of_sampler(MOST_GPUS)
    return trainers, [fewest] + [size for size in (2, 4, 8) if fewest < size]
