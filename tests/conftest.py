"""What all tests share: reproducible hypothesis examples, no network, and what happens to `gpu` tests without one."""

import os
import re
import shutil
import signal

import pytest
import torch
from hypothesis import Phase, settings
from xdist.scheduler import LoadFileScheduling

# Examples are the same in every run, so that a red test is red for everyone. No deadline: machines differ in speed.
settings.register_profile("posttrain", derandomize=True, deadline=None, database=None)
settings.load_profile("posttrain")
if "POSTTRAIN_MUTANTS" in os.environ:  # of a planted fault the first example that fails is enough
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", settings.default, phases=phases, report_multiple_bugs=False)
    settings.load_profile("mutants")

# A test that would reach for a model hub fails at once instead of waiting for it.
os.environ["HF_HUB_OFFLINE"] = "1"


# What a test loses with the machine's power, it writes again: a run of rl syncs some ten files a step, 5% of its time.
def _unsynced(fd: object) -> None: ...


os.fsync = _unsynced

# A suite that is started in the background ignores Ctrl-C, and so would the processes that it sends one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_report_header() -> list[str]:
    """Which of the tests that need something from outside will run."""
    server = (
        "PostgreSQL" if "POSTTRAIN_POSTGRES" in os.environ else "SQLite alone (CONTRIBUTING.md says how on PostgreSQL)"
    )
    none = "none, so its tests are skipped; on Debian: apt-get install chromium"
    return [f"browser: {CHROMIUM or none}", f"annotation store: {server}"]


# Whole runs, servers and processes: with these left out the others take less than three minutes on one core.
SLOW = (
    *("recipes/", "matrix/", "contract/", "annotation/", "runs/", "planning/", "test_cli", "test_fast_paths"),
    *(
        "examples/",
        "serving/",
        "training/test_learner",
        "training/test_branches",
        "training/test_reward",
        "training/test_policy",
    ),
    *("evaluation/test_pairs", "models/", "distributed/", "algorithms/test_opd"),
    *("training/test_gate", "algorithms/test_process_rewards", "data/test_tool_calls", "serving/test_http_server"),
    *("engine/test_transformers", "engine/test_scheduler", "engine/test_engine", "engine/test_openai"),
    *("engine/test_scheduler_ahead", "engine/test_mixed", "episodes/test_openai", "rewards/verifiers/test_corpora"),
    *("training/test_checkpoint", "training/test_unpaired", "training/test_pairwise", "training/test_actor_critic"),
    *("rewards/verifiers/test_gym_families", "rewards/verifiers/test_worker", "test_bad_input", "test_suggestions"),
    *("test_verbs", "sandbox/test_hacks", "pipelines/test_rounds"),
)


BOXED = (
    *("sandbox/", "rewards/test_code.py", "examples/test_functions.py"),
    *(f"recipes/test_suites.py::test_predictions_by_hand[{name}" for name in ("humaneval", "mbpp")),
    "recipes/test_suites.py::test_what_cannot_be_is_said_in_a_line_before_a_model_is_loaded[given9",
)
"""Tests of programs in a sandbox: skipped, with the reason, where none can be made."""

# The same fault once more, in a cluster, process, browser or model of its own: `make test-all` has them, `make test`
# one of each kind. Each is the name of a test or of a file, or how it begins; `*` is anything.
THOROUGH = (
    # verify on the packaged model, whole; on the tiny one it is whole, and with all fast paths off item by item
    "contract/test_contract.py::test_the_packaged_model_keeps_the_contract",
    "contract/test_contract.py::test_verify_whole[all",
    "contract/test_contract.py::test_a_right_trainer_passes_on_other_families[Qwen3]",
    "contract/test_contract.py::test_a_right_trainer_passes_on_other_families[Mixtral]",
    # TRL's own trainer in processes of its own; left are dumps that were made by hand
    "parity/test_trl_rollouts.py",
    # kills of whole runs: left is what PPO has, with a renewed reference
    "contract/test_kill.py::*[all weights in bfloat16]",
    "pipelines/test_whole.py",
    "pipelines/test_rounds.py",
    "contract/test_kill.py::*[adapter in float32]",
    "contract/test_kill.py::*[adaptive KL]",
    "contract/test_kill.py::*[iterated dpo*",
    "recipes/test_environments.py::test_a_run_that_was_killed_in_an_episode",
    # a process that is stopped (19) or told to end (15), beside one that is killed (9)
    *(f"distributed/test_{name}.py::*[19" for name in ("recipes", "samplers", "scorers", "reward_functions")),
    "distributed/test_samplers.py::*[15",
    # numbers of ranks beside two
    "distributed/test_learner_group.py::*[3",
    "distributed/test_sharding.py::*[3",
    "distributed/test_replicas.py",
    "distributed/test_learner_group.py::test_the_group_keeps_to_the_kit[1",
    "distributed/test_learner_group.py::test_it_computes_what_one_process_does[1",
    "distributed/test_learner_group.py::test_what_fails_on_one_rank*[1",
    "distributed/test_sharding.py::test_shards_keep_to_the_kit[1",
    "distributed/test_recipes.py::test_several_differ*[sharded",
    "distributed/test_sharding.py::test_shards_keep_to_the_kit[2-trunk-adapter2",
    "distributed/test_sharding.py::test_where_shards_are_kept_changes_nothing[torch.float32",
    "distributed/test_sharding.py::test_shards_that_each_rank_writes",
    "distributed/test_sharding.py::test_a_full_disk",
    "distributed/test_sharding.py::test_what_fails_in_a_backward",
    # a cluster of its own: a node is lost, a signal, another GPU, sockets; left are losses of each kind of process
    "distributed/test_nodes.py",
    "distributed/test_cluster.py::test_a_process_sees_the_gpus",
    "distributed/test_cluster.py::test_processes_and_what_replaces",
    "distributed/test_cluster.py::test_the_output_of_a_process",
    "distributed/test_cluster.py::test_a_process_that_hears_nothing",
    "distributed/test_staleness.py::test_a_signal_to_its_group",
    "distributed/test_verify.py::test_weights_that_do_not_arrive",
    "distributed/test_recipes.py::test_nothing_is_left",
    "distributed/test_recipes.py::test_no_socket",
    # samplers and scorers of its own: left are one loss of each, new weights, and runs that equal one process
    "distributed/test_broadcast.py::test_none_is_replaced",
    "distributed/test_learner_group.py::test_a_rank_that_wakes",
    "distributed/test_samplers.py::test_a_sampler_that_is_lost_between",
    "distributed/test_reward_functions.py::test_a_share_whose_process_is_lost",
    "distributed/test_reward_functions.py::test_a_run_with_a_scorer",
    "distributed/test_reward_functions.py::test_scores_are_those_of_one_process_in_order[*-two",
    "distributed/test_scorers.py::test_a_judge_and_a_player",
    "distributed/test_recipes.py::test_several_differ*[grpo",
    "distributed/test_reward_functions.py::test_after_losses_in_a_row",
    "distributed/test_reward_functions.py::test_groups_are_scored_by_scorers",
    "distributed/test_reward_functions.py::test_who_waits",
    "distributed/test_reward_functions.py::test_what_has_timed_out",
    "distributed/test_reward_functions.py::test_a_process_that_its_function_ends",
    # a browser: left is the whole path
    "annotation/app/test_browser.py::test_cards_are_dragged",
    "annotation/app/test_browser.py::test_a_draft_outlives",
    "annotation/app/test_browser.py::test_a_person_talks",
    "annotation/app/test_browser.py::test_every_page",
    "annotation/app/test_browser.py::test_a_page_that_was_closed",
    # curves of sixty steps, beside the fifteen of every algorithm
    "recipes/test_distillation.py::test_a_student_comes_near",
    "recipes/test_distillation.py::test_whole_distributions_bring",
    *(f"recipes/test_online_preference.py::test_it_learns_to_please[{name}" for name in ("dpo-changes1", "irpo")),
    "recipes/test_rl.py::test_process_rewards_change*[vapo",
    # the same with an adapter, whose base as the reference has a test of its own
    "recipes/test_pairs.py::test_every_algorithm_learns_pairs[4-",
    # the same with another number, such as the temperature that was planted
    "evaluation/test_pairs.py::test_a_planted_temperature*[0.4",
    "evaluation/test_pairs.py::test_a_planted_temperature*[1.0",
    "recipes/test_plan_cluster.py::test_a_mistake_is_one_line[--microbatch-tokens 9000000",
    *(f"engine/test_transformers.py::test_conforms_whatever*[{number}" for number in (2, 5)),
    "engine/test_transformers.py::test_a_cache_that_grows*[1",
    "training/test_learner.py::test_so_it_does_with_an_adapter[0.0",
    "test_cli.py::test_a_stopped_run_says_how_to_go_on[15",
    "recipes/test_score.py::test_a_module_that_keeps_a_thread*[-5",
    # heads of attributes, whose runs, adapters and checkpoints are those of heads of steps
    "recipes/test_reward_attributes.py::test_each_evaluation_begins",
    "recipes/test_reward_attributes.py::test_attributes_that_contradict",
    "recipes/test_reward_attributes.py::test_the_gate_is_that",
    "recipes/test_reward_attributes.py::test_an_adapter_learns",
    "recipes/test_reward_attributes.py::test_a_resumed_run_equals",
    "recipes/test_reward_attributes.py::test_its_scores_are_calibrated",
    "recipes/test_reward_attributes.py::test_what_is_saved_before",
    # RLHF from rankings on a tiny model; left are its parts, consensus, reward model and PPO
    "examples/test_examples.py::test_rlhf_runs",
    # families by pairs and reward models; left are sft, rl, and logprobs, scores and gradients of each
    *(f"matrix/test_matrix.py::test_a_cell[*{recipe}" for recipe in ("preference", "reward-model")),
    # the notebook as it stands; left is a tiny model that takes its first steps
    "examples/test_first_notebook.py::test_the_first_notebook[as it stands",
    # a page against what a script prints
    "examples/test_docs.py::test_the_walk",
    # resumed runs, beside sft and rl with an adapter, and what an algorithm keeps: averages, a critic, a reference
    "recipes/test_adapters.py::test_a_run_with_dropout*[preference",
    "recipes/test_adapters.py::test_a_run_with_dropout*[online-preference",
    "recipes/test_adapters.py::test_a_run_with_dropout*[reward-model",
    *(f"recipes/test_rl.py::test_a_run_that_is_resumed*[{name}-" for name in ("rloo", "ppo-ptx", "vapo", "vineppo")),
    "recipes/test_rl.py::test_a_run_that_is_resumed*[ppo-penalty-changes2",
    # processes of jobs that are killed; left are a server that is killed, and a job that outlives its server
    "serving/jobs/test_end_to_end.py::test_a_job_whose_processes_are_killed",
    # a disk that fills at one more write, and joint requests in one more size
    "serving/test_failures.py::test_nor_is_a_step*[10-",
    *(f"serving/test_joint_requests.py::test_a_batch_is_of_models_in_memory*[{size}-" for size in (1, 2)),
    *(f"serving/test_joint_requests.py::test_a_batch_has_a_limit*[{size}-" for size in (23, 24)),
    # branches of a row in two micro-batches, by algorithms that read a row as GRPO, PPO, GKD or PAV do
    *(
        f"training/test_branches.py::test_a_micro_batch_may_end*[{name}]"
        for name in ("ppo-penalty", "ppo-ptx", "remax", "vapo", "grpo-bucketed", "vineppo", "rloo", "opd", "reinforce")
    ),
    *(
        f"training/test_branches.py::test_a_micro_batch_may_end*[{name}]"
        for name in ("cispo", "rae", "dr-grpo", "reinforce++", "pass-at-k", "dapo", "gspo", "maxrl", "dppo", "sapo")
    ),
    # a night of generated mutants, which `make check` looks at as well
    "test_generated_mutants.py::test_a_test_that_looks",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = {item: item.nodeid.partition("tests/")[2] for item in items}
    thorough = {name: re.compile(re.escape(name).replace(r"\*", ".*")) for name in THOROUGH}
    for item, name in names.items():
        if name.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if any(pattern.match(name) for pattern in thorough.values()):
            item.add_marker(pytest.mark.thorough)
    whole = {name.partition("::")[0] for name in names.values()} if "::" not in "".join(config.args) else set[str]()
    for name, pattern in thorough.items():  # of a file that was collected whole
        if name.partition("::")[0] in whole and not any(map(pattern.match, names.values())):
            raise pytest.UsageError(f"tests/conftest.py: no test of THOROUGH is called {name}")
    boxed = [item for item, name in names.items() if name.startswith(BOXED)]
    if boxed and (why := _not_isolated()):
        for item in boxed:
            item.add_marker(pytest.mark.skip(reason=why))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and this machine has none"))


def _not_isolated() -> str:
    """Why programs cannot be isolated on this machine; empty where they can."""
    from posttrain.errors import UserError
    from posttrain.sandbox import refuse_without_isolation

    try:
        refuse_without_isolation()
    except UserError as error:
        return str(error)
    return ""


class OneClusterScheduling(LoadFileScheduling):
    """A file's tests run in one worker, for their fixtures, and all tests of a cluster in one, for one start of Ray."""

    def _split_scope(self, nodeid: str) -> str:
        return "distributed" if "distributed/" in nodeid else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneClusterScheduling:
    """Hand out files in their order: by their number of tests, which is xdist's way, the longest would come last."""
    config.option.loadscopereorder = False
    return OneClusterScheduling(config, log)
