"""Plans of the runs that sample from a policy; no weights are read, and nothing is written."""

from dataclasses import replace
from pathlib import Path

from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared
from posttrain.bindings.algorithm import check_algorithm, check_pairing, leaves_start
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions
from posttrain.bindings.sampling import read_prompts
from posttrain.errors import words_of
from posttrain.models.footprint import read_shape
from posttrain.options.online import RL, OnlineOptions, OnlinePreference
from posttrain.planning.plan import Plan, plan_of
from posttrain.planning.work import Load, Unloaded, Work, sampled_work, unloaded, with_algorithm
from posttrain.training.resolve_model import began_from, saved_model
from posttrain.training.schedule import unreached
from posttrain.training.supervised import longest_text, pretraining_texts
from posttrain.training.teacher import NO_TEACHERS, Teachers, find_teachers

MOST_TEXTS = 500  # pretraining texts whose lengths a plan measures


def plan_rl(
    config: RL,
    algorithm: OnlineAlgorithm,
    cluster: ClusterOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan a run of rl; raises `UserError` as that would before weights are read."""
    check_algorithm(config, algorithm, cluster)
    model = unloaded(config, resume)
    teachers = find_teachers(
        config.teacher,
        config.teacher_prompt,
        began_from(config.model, resume).where,
        microbatch_tokens=config.microbatch_tokens,
    )
    compared = declared(algorithm, ReferenceLogprobs) is not None
    apart = leaves_start(config) and (not compared or config.ref_sync_every > 0)
    work = _sampled("rl", config, model, config.steps, teachers=teachers)
    work = replace(
        with_algorithm(work, algorithm, text=_text(config, model) if algorithm.extra_losses else None),
        updates=config.updates_per_step,
        critic=config.critic == "own",
        references=compared + apart,
        teachers=tuple(each.shape for each in teachers.models.values()),
    )
    return plan_of(config, work, cluster, measure=measure)


def plan_online_preference(
    config: OnlinePreference,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: ClusterOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan a run of online-preference; raises `UserError` as that would before weights are read."""
    check_pairing(config, algorithm)
    work = _sampled("online-preference", config, unloaded(config, resume), config.rounds, together=2)
    compared = declared(algorithm, ReferenceLogprobs) is not None
    pairs = min(config.pairs_per_step, work.longest.prompts * (work.longest.group // 2))  # if there are as many
    work = replace(
        work,
        batch=f"{work.batch}, {pairs} pairs of them an update",
        updates=config.updates_per_round,
        updated=(replace(work.longest, prompts=pairs, group=2), replace(work.expected, prompts=pairs, group=2)),
        references=int(compared),
        reads=config.updates_per_round if compared else 0,
    )
    return plan_of(config, work, cluster, measure=measure)


def _sampled(
    command: str,
    config: OnlineOptions,
    model: Unloaded,
    steps: int,
    *,
    together: int = 1,
    teachers: Teachers = NO_TEACHERS,
) -> Work:
    """What sampling and scoring take, as far as the prompts tell."""
    prompts = read_prompts(config, model.chat, model.shape.context, together=together, teachers=teachers)
    work = sampled_work(command, model.shape, config, prompts.lengths, steps=steps, episode=prompts.episode)
    scorers = [name for name in (*words_of("reward_model", config.reward_model), config.gold_model) if name]
    return replace(
        work,
        reward_models=sum(read_shape(saved_model(name).where).parameters for name in scorers),
        functions=prompts.functions,
        chat_models=prompts.chat_models,
        notes=(*model.notes, *prompts.notes, *unreached(config.warmup_steps, steps)),
    )


def _text(config: RL, model: Unloaded) -> Load:
    """What the pretraining texts take."""
    most, texts = longest_text(config, model.shape.context), pretraining_texts(config)[:MOST_TEXTS]
    lengths = [min(len(model.chat.text_ids(text)), most) for text in texts]
    return Load(config.pretraining_per_step, 1, 0, round(sum(lengths) / len(lengths)), config.microbatch_tokens)
