"""Which files get generated mutants, and which tests must notice them."""

from pathlib import Path

from tests.mutations import room_with_list

# Steps from one version of a database to the next are history; and a migration's own tests run it whole.
LEFT_OUT = ("annotation/store/migrations/", "__main__.py")

# Files that no test file is named after, or that others look at as well as theirs. Below tests, separated by spaces.
TESTS_OF = {
    "annotation/aggregation.py": "annotation/aggregation/test_bradley_terry.py "
    "annotation/aggregation/test_majority.py annotation/aggregation/test_dawid_skene.py "
    "annotation/aggregation/test_plackett_luce.py",
    "annotation/app/chat_worker.py": "annotation/app/test_conversations.py",
    "annotation/app/main.py": "annotation/app/test_security.py annotation/app/test_admin.py",
    "annotation/app/security.py": "annotation/app/test_security.py annotation/app/test_markdown.py",
    "annotation/app/session.py": "annotation/app/test_security.py annotation/app/test_tasks.py "
    "annotation/app/test_conversations.py annotation/test_choices.py annotation/app/test_admin.py",
    "annotation/app/tasks.py": "annotation/app/test_tasks.py annotation/app/test_conversations.py",
    "annotation/rankings.py": "annotation/test_rankings.py annotation/test_consensus.py annotation/test_agreement.py "
    "annotation/store/test_rulings.py",
    "annotation/store/database.py": "annotation/store/test_database.py annotation/store/test_backup.py",
    "annotation/store/project_statistics.py": "annotation/store/test_project_statistics.py "
    "annotation/store/test_work.py annotation/store/test_conversations.py annotation/store/test_rulings.py",
    "annotation/store/projects.py": "annotation/store/test_projects.py annotation/store/test_work.py "
    "annotation/store/test_conversations.py annotation/store/test_rulings.py",
    "annotation/store/work.py": "annotation/store/test_work.py annotation/store/test_conversations.py "
    "annotation/store/test_rulings.py",
    "annotation/task_kinds.py": "annotation/test_task_kinds.py annotation/test_choices.py "
    "annotation/store/test_work.py annotation/store/test_rulings.py",
    "annotation/training_rows.py": "annotation/test_training_rows.py annotation/store/test_conversations.py "
    "annotation/store/test_rulings.py",
    "background.py": "rewards/test_background.py rewards/test_reward.py",
    "commands.py": "test_cli.py test_suggestions.py",
    "data/chat.py": "data/test_chat.py data/test_tools.py data/test_token_ends.py data/test_ordinary_text.py",
    "data/files.py": "data/test_sources.py data/test_given.py",
    "data/heldout.py": "data/test_heldout.py",
    "data/messages.py": "data/test_tools.py data/test_records.py data/test_demonstrations.py",
    "data/preferences.py": "data/test_preferences.py data/test_layouts.py",
    "data/judgements.py": "data/test_meaning.py data/test_layouts.py",
    "data/records.py": "data/test_records.py data/test_demonstrations.py",
    "data/rendering.py": "data/test_chat.py data/test_tools.py data/test_ordinary_text.py",
    "data/sources.py": "data/test_sources.py data/test_mixtures.py",
    "data/tasks.py": "data/test_tasks.py data/test_demonstrations.py data/test_mixtures.py recipes/test_score.py",
    "data/tokenizer.py": "data/test_tokenizer.py data/test_template_args.py data/test_token_ends.py",
    "distributed/pool.py": "distributed/test_cluster.py distributed/test_ledger.py",
    "distributed/process_group.py": "distributed/test_recipes.py distributed/test_learner_group.py "
    "distributed/test_replicas.py",
    "distributed/samplers.py": "distributed/test_samplers.py distributed/test_broadcast.py",
    "distributed/trainers.py": "distributed/test_learner_group.py distributed/test_recipes.py",
    "engine/budget.py": "engine/test_budget.py engine/test_reply_cache.py",
    "engine/chat_models.py": "engine/test_chat_models.py engine/test_policy_judge.py recipes/test_seats.py",
    "engine/kv_cache.py": "engine/test_kv_cache.py engine/test_prefix_cache.py",
    "engine/policy.py": "engine/test_streaming.py",
    "engine/scorer.py": "training/test_reward.py recipes/test_rl_reward_model.py",
    "environments/env.py": "environments/test_env.py environments/test_single_turn.py",
    "environments/scored.py": "environments/test_scored.py environments/test_judged.py rewards/test_groups.py "
    "recipes/test_rl_reward_model.py",
    "environments/user_methods.py": "environments/test_user_methods.py environments/test_load.py",
    "episodes/metrics.py": "episodes/test_metrics.py episodes/test_hacking_signals.py",
    "episodes/sampler.py": "episodes/test_sampler.py episodes/test_draws.py episodes/test_lost_episodes.py",
    "episodes/seats.py": "episodes/test_policy_seat.py episodes/test_chat_seat.py",
    "errors.py": "test_bad_input.py",
    "export/card.py": "recipes/test_export.py",
    "export/checking.py": "recipes/test_export.py",
    "lookup.py": "test_cli.py test_advise.py",
    "models/attention.py": "models/test_attention.py models/test_scoring.py",
    "models/footprint.py": "models/test_footprint.py models/test_adapter_footprint.py",
    "models/fused.py": "models/test_fused.py models/test_packed_weights.py models/test_gradient_checkpointing.py",
    "models/host_memory.py": "models/test_host_memory.py models/test_host_threads.py",
    "models/language_model.py": "models/test_support.py models/test_load.py models/test_lora.py models/test_heads.py "
    "models/test_adapters.py",
    "models/load.py": "models/test_load.py models/test_weight_files.py models/test_throughput_probe.py",
    "models/lora.py": "models/test_lora.py models/test_adapters.py",
    "models/precision.py": "models/test_precision.py models/test_throughput_probe.py",
    "models/reference.py": "models/test_lora.py models/test_dropout.py models/test_critic.py",
    "models/scoring.py": "models/test_scoring.py models/test_attention.py",
    "options/hyperparameters.py": "test_usage.py test_catalogue.py",
    "parsing.py": "test_parsing.py test_usage.py",
    "planning/step_time.py": "planning/test_step_time.py planning/test_plan.py",
    "recipes/evaluate_reward/__init__.py": "recipes/test_reward_model.py",
    "recipes/evaluate_reward/result.py": "recipes/test_reward_model.py",
    "recipes/jobs.py": "serving/jobs/test_serve.py",
    "recipes/verify/dump.py": "recipes/test_verify_dumps.py",
    "recipes/verify/dump_checks.py": "recipes/test_verify_dumps.py",
    "recipes/verify/dump_losses.py": "recipes/test_verify_dumps.py",
    "recipes/verify/imported.py": "recipes/test_verify_dumps.py",
    "recipes/preference.py": "recipes/test_pairs.py",
    "recipes/reward_model/attributes.py": "recipes/test_reward_attributes.py",
    "report/checks.py": "report/test_checks.py report/test_run_report.py report/test_verdict.py",
    "report/curves.py": "report/test_curves.py report/test_verdict.py",
    "report/masked_text.py": "recipes/test_data_show.py",
    "report/run_report.py": "report/test_run_report.py report/test_reward_gains.py",
    "rewards/code_tests.py": "rewards/test_code.py",
    "rewards/judges/__init__.py": "rewards/judges/test_pointwise.py rewards/judges/test_kinds.py",
    "rewards/judges/consensus.py": "rewards/judges/test_kinds.py recipes/test_judge.py",
    "rewards/judges/kinds.py": "rewards/judges/test_kinds.py rewards/judges/test_verdict.py",
    "rewards/learned.py": "rewards/test_learned.py rewards/test_likelihood.py",
    "rewards/rules.py": "rewards/rules/test_language.py rewards/rules/test_length.py "
    "rewards/rules/test_repetition.py rewards/rules/test_rules.py rewards/rules/test_steps.py "
    "rewards/rules/test_tags.py rewards/rules/test_verification.py",
    "rewards/verifiers/extraction.py": "rewards/verifiers/test_extraction.py rewards/verifiers/test_surroundings.py",
    "rewards/verifiers/gym.py": "rewards/verifiers/test_gym.py rewards/verifiers/test_untrusted.py",
    "rewards/verifiers/gym_forms.py": "rewards/verifiers/test_gym_forms.py rewards/verifiers/test_gym_structures.py",
    "rewards/verifiers/math.py": "rewards/verifiers/test_math.py rewards/verifiers/test_formula.py",
    "rewards/verifiers/number_grammar.py": "rewards/verifiers/test_numbers.py",
    "rewards/verifiers/numbers.py": "rewards/verifiers/test_numbers.py rewards/verifiers/test_exact.py",
    "rewards/verifiers/prose.py": "rewards/verifiers/test_claims.py rewards/verifiers/test_numbers.py "
    "rewards/verifiers/test_boxes.py",
    "rewards/verifiers/size.py": "rewards/verifiers/test_math.py rewards/verifiers/test_formula.py",
    "rewards/verifiers/units.py": "rewards/verifiers/test_numbers.py rewards/verifiers/test_claims.py",
    "rewards/verifiers/workers.py": "rewards/verifiers/test_pool.py rewards/verifiers/test_worker.py",
    "runs/environment.py": "runs/test_environment.py runs/test_memory.py",
    "runs/processes.py": "serving/jobs/test_services.py pipelines/test_run.py",
    "runs/jsonl.py": "runs/test_jsonl.py recipes/test_convert.py",
    "runs/result.py": "recipes/test_pairs.py",
    "runs/run.py": "runs/test_samples.py environments/test_scored.py",
    "sandbox/inside/candidate.py": "sandbox/test_trial.py",
    "sandbox/inside/session.py": "sandbox/test_box.py",
    "sandbox/inside/start.py": "sandbox/test_box.py",
    "sandbox/inside/tests.py": "sandbox/test_trial.py",
    "sandbox/inside/wire.py": "sandbox/test_trial.py",
    "sandbox/trial.py": "sandbox/test_trial.py sandbox/test_hacks.py",
    "serving/access.py": "serving/jobs/test_access.py serving/test_guard.py",
    "serving/app.py": "serving/test_sdk.py serving/test_guard.py",
    "serving/base.py": "serving/test_decoder.py",
    "serving/bodies.py": "serving/test_guard.py",
    "serving/checkpoints.py": "serving/test_checkpoints.py serving/test_guard.py",
    "serving/files.py": "serving/test_guard.py",
    "serving/jobs/processes.py": "serving/jobs/test_services.py serving/jobs/test_reading.py",
    "serving/jobs/routes.py": "serving/jobs/test_reading.py serving/jobs/test_store.py",
    "serving/jobs/specification.py": "serving/jobs/test_specification.py serving/jobs/test_bodies.py",
    "serving/jobs/table.py": "serving/jobs/test_services.py serving/jobs/test_store.py",
    "serving/operations.py": "serving/test_sdk.py serving/test_restart.py serving/test_guard.py",
    "serving/run.py": "serving/test_restart.py serving/test_failures.py serving/test_futures.py",
    "serving/runs.py": "serving/test_joint_requests.py serving/test_restart.py serving/test_failures.py",
    "serving/services.py": "serving/test_worker.py serving/test_guard.py",
    "serving/training_routes.py": "serving/test_guard.py",
    "testing/conformance.py": "testing/test_algorithms.py testing/test_rewards.py",
    "testing/gradients.py": "testing/test_algorithms.py",
    "testing/preferences.py": "testing/test_algorithms.py",
    "testing/trl_dump.py": "parity/test_trl_rollouts.py",
    "types.py": "test_types.py rewards/test_spans.py",
    "user_code.py": "rewards/test_custom.py rewards/test_binding.py environments/test_load.py",
}


def files(source: Path, words: list[str]) -> list[str]:
    """Return the files below `source` that get generated mutants; of `words` at least one is in the path."""
    every = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*.py"))]
    ours = [file for file in every if not room_with_list(file) and not file.startswith(LEFT_OUT)]
    return [file for file in ours if not words or any(word in file for word in words)]


def room_of(file: str) -> str:
    """Return the folder that `file` is in; files that are rooms by themselves are counted together."""
    return file.split("/")[0] if "/" in file else "single files"


def own_tests(file: str, tests: Path) -> str:
    """Return the tests, below the folder `tests`, that must notice a fault of `file`; none is the empty string.

    They are those of the table; else the test file with its name, else that of the folder it is in (a recipe may be
    a folder), else all tests of that folder.
    """
    if file in TESTS_OF:
        return TESTS_OF[file]
    path = Path(file)
    folder = path.parent
    mirrors = [folder / f"test_{path.stem}.py", folder.parent / f"test_{folder.name}.py"]
    named = [mirror for mirror in mirrors if (tests / mirror).is_file()]
    if named:
        return named[0].as_posix()
    return folder.as_posix() if folder.name and list((tests / folder).glob("test_*.py")) else ""
