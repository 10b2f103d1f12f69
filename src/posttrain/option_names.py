"""The names of the options of all commands; written by `python -m tests.test_flags`."""

_NAMES = """
    accept_changes add_key address adversarial_pairs algorithm alpha annotation_items annotators_per_item ask
    at_least at_once attributes bad_weight bandwidth_share base_problems baseline baseline_decay batch_gradients
    beta cache_gb calibrate callback center_rewards chat chat_template choice_seed choose chosen_share clip
    clip_high clip_low cluster_timeout columns completions completions_per_prompt compute config continuations
    cov_high cov_low critic critic_lr critic_warmup_steps dataset datasets days debug decay decorrelate
    demonstrations disable discount divergence dry_run dtype enable engine ensemble ensemble_aggregation
    entropy_coefficient environment environment_args epochs eta eval_dataset eval_every eval_limit eval_samples
    eval_share evict_stale examples_per_step exclude file first fsdp fsdp_offload fsdp_replicas gae_lambda gamma
    gate_width gb_per_key gold gold_model good_weight gpu gpus grace_seconds gradient_checkpointing greedy have
    heads help help_all history host host_names https imitation_coefficient importance importance_floor
    importance_level in_flight_updates instructions invite json judge judge_budget judge_cache judge_concurrency
    judge_max_new_tokens judge_prompt judge_temperature k keep keep_last keys kind kl_budget kl_coefficient
    kl_estimator kl_from kl_gain kl_target label_smoothing layout length_alpha length_debias length_normalised
    length_penalty length_spread limit logprob_passes long lora_alpha lora_dora lora_dropout lora_modules_to_save
    lora_rank lora_rslora lora_targets lr margin max_episode_tokens max_grad_norm max_hours max_lost max_new_tokens
    max_prompt_tokens max_rank max_refills max_request_mb max_sequences max_staleness max_states max_tokens
    mean_tokens method mfu microbatch_tokens min_reward_std model model_parameters models models_in_memory
    models_per_key n name no_batch_gradients no_calibrate no_chat no_evict_stale no_fsdp no_fsdp_offload
    no_gradient_checkpointing no_greedy no_history no_https no_in_flight_updates no_length_normalised no_long
    no_lora_dora no_lora_rslora no_offload_optimizer no_private_rewards no_process_rewards no_reference_free
    no_stop_gradient no_tokens odds_weight offload_optimizer optim output overlong_share pair_columns pairing
    pairs_per_step penalised_share penalty plot port precision pretraining_coefficient pretraining_dataset
    pretraining_per_step price_per_gpu_hour private_rewards problems process_rewards project prompt prompt_template
    prompt_tokens prompts prompts_per_step proxies queued_per_key quiet ratings ref_sync_every reference_free
    remove_key repeat_share resume resume_steps reward reward_coefficient reward_model right_from rl_lr rl_steps
    root rounds rows rules runs sampler_cpus sampler_gpus sampler_memory_gb sampler_threads samplers samples
    save_every schedule scorer_cpus scorer_gpus scorer_memory_gb scorer_threads scorers scoring_seconds seats seed
    served_name sft_batch sft_epochs sft_lr slips split std_epsilon step_aggregation step_tokens steps stop_after
    stop_gradient store system tau_negative tau_positive teacher teacher_prompt temperature template_args
    tensor_parallel thinking thinking_first ties tis_cap title to tokens tokens_per_request top_k top_p track
    track_name track_project track_tags train_on trainer_cpus trainer_gpus trainer_memory_gb trainer_threads
    trainers trusted uncertainty_penalty updates_per_round updates_per_step url uses value_clip value_coefficient
    version warmup_steps weight_decay weight_sync weights without
"""
OPTIONS = frozenset(_NAMES.split())
