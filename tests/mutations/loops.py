"""Faults of the loops: a state that is forgotten, what is computed with the wrong step, an option that does nothing."""

from tests.mutations import Mutation

RESUMED = "test_a_run_that_is_resumed_equals_one_that_was_not_stopped"
THROWN = "test_groups_that_teach_nothing_are_thrown_away_and_drawn_again"
STEERED = "test_a_coefficient_that_is_steered_is_logged_and_moves"
RENEWED = "test_a_reference_that_is_renewed_is_the_policy_of_then"
WARMED = "test_while_the_critic_warms_up_the_policy_stays"
PENALTY = "test_the_penalty_is_taken_before_groups_are_thrown_away"
WEIGHED = "test_a_token_is_weighed_by_policy_over_sampler"
BEGINS = "test_the_learning_rate_begins_when_the_policy_does"
PACE = "test_the_pace_of_sampling_counts_what_is_not_learned_from"
ALONE = "test_a_group_of_one_is_enough_where_nothing_is_compared_within_it"
BESIDE = "test_text_is_learned_beside"
NOW = "test_of_one_update_a_round_each_learns_from_what_the_policy_is_now"
DIVIDED = "test_a_round_is_divided_among_its_updates"
REFUSED_TOO = "test_what_cannot_be_is_refused"
REFUSED = "test_an_option_that_cannot_be_is_refused"

MUTATIONS = [
    *(
        Mutation("recipes/rl.py", old, new, f"recipes/test_rl.py::{test}")
        for old, new, test in [
            ("draws += rolled.draws", "draws += 1", THROWN),
            ("roll_out(draws, accepts, shaped", "roll_out(step, accepts, shaped", THROWN),
            ("_FRESH | session.state", "_FRESH", RESUMED + "[ppo-penalty-changes2]"),
            ("(step + 1) % config.ref_sync_every == 0", "step == 1", RENEWED),
            ("delay=_critic_warmup(algorithm)", "delay=0", BEGINS),
            ("replace(algorithm, **state", "replace(algorithm, **{} and state", RESUMED + "[ppo-penalty-changes2]"),
            ("if value != knobs[name]}", "}", THROWN),
            ("shortened(group, config.length_penalty", "shortened(group, 0.0", PENALTY),
            ("max_refills=config.max_refills", "max_refills=1", THROWN),
            ("    enough(algorithm, config.completions_per_prompt)\n    saved =", "    saved =", ALONE),
            ("if not 0 < config.critic_lr < math.inf:", "if False:", REFUSED),
            ("if config.critic not in CRITICS:", "if False:", REFUSED),
            ("if critic.warmup_steps >= config.steps:", "if critic.warmup_steps > config.steps:", REFUSED),
            ("if config.ref_sync_every and not declared(algorithm, ReferenceLogprobs):", "if False:", REFUSED),
            (" or declared(algorithm, StateValues)):", "):", REFUSED),
            ("bool(config.pretraining_dataset) != bool(", "bool(config.pretraining_dataset) and not bool(", BESIDE),
        ]
    ),
    *(
        Mutation("training/pretraining.py", old, new, f"recipes/test_rl.py::{test}")
        for old, new, test in [
            ("(False, *[True] * (len(ids) - 1))", "(True,) * len(ids)", BESIDE),
            (" if len(text.split()) > 1]", "]", "test_text_that_cannot_be_learned_is_refused"),
        ]
    ),
    *(
        Mutation("recipes/online_preference.py", old, new, f"recipes/test_online_preference.py::{test}")
        for old, new, test in [
            ("(step + 1) % config.ref_sync_every == 0", "step == 3", NOW),
            ("sampler.roll_out(step)", "sampler.roll_out(0)", "test_every_round_samples_anew"),
            ("margin=config.margin", "margin=0.0", "test_a_round_without_pairs_learns_nothing_and_says_so"),
            ("pairs_of(rolled.groups, config.pairing", 'pairs_of(rolled.groups, "all"', NOW),
            ("min(config.pairs_per_step, len(pairs))", "config.pairs_per_step", DIVIDED),
            ("range(config.updates_per_round)", "range(1)", DIVIDED),
            ("len(pairs), size, update, seed)", "len(pairs), size, 0, seed)", DIVIDED),
            ("+ value / config.updates_per_round", "+ value", DIVIDED),
            ("if isinstance(algorithm, UnpairedAlgorithm):", "if False:", REFUSED_TOO),
            ("if config.pairing not in PAIRINGS:", "if False:", REFUSED_TOO),
            ("if config.completions_per_prompt < 2:", "if config.completions_per_prompt < 1:", REFUSED_TOO),
        ]
    ),
]
