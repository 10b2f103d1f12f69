"""Faults of reward models: what they learn by, how they are judged, and what their scores mean afterwards."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("objectives/reward_models.py", old, new, "objectives/test_debias.py")
        for old, new in [
            ("(chosen_B + rejected_B).square()", "(chosen_B - rejected_B).square()"),
            ("(chosen_B + rejected_B).square()", "(chosen_B + rejected_B.detach()).square()"),
            ("first_E - first_E.mean()", "first_E"),
            ("second_E - second_E.mean()", "second_E"),
            ("spread.sqrt()", "spread"),
            ("    if spread == 0:\n        return (a_E", "    if False:\n        return (a_E"),
            ("(quality_E, tokens_E).abs() - ", "(quality_E, tokens_E) - "),
            ("(quality_E, tokens_E).abs() - ", "(quality_E, tokens_E).abs() + "),
            ("(first_D * second_D).sum().abs()", "(first_D * second_D).abs().sum()"),
            ("(first_D * second_D).sum().abs() /", "(first_D * second_D).sum() /"),
            (" / (first_D.square().sum() * second_D.square().sum()).sqrt()", ""),
        ]
    ),
    *(
        Mutation("training/reward.py", old, new, "training/test_reward.py")
        for old, new in [
            ("(quality_E + length_E)[:, None], pairs", "quality_E[:, None], pairs"),
            ("torch.autograd.grad(ranked + loss.length * apart,", "torch.autograd.grad(ranked + apart,"),
            ("loss.margin * pairs.strength_B", "loss.margin + 0 * pairs.strength_B"),
            ("label_smoothing=loss.label_smoothing", "label_smoothing=0.0"),
            ("cost_BH + loss.center_rewards * centring(", "cost_BH + centring("),
            ("(cost_BH * pairs.weight_BH).mean(1)", "(cost_BH * pairs.weight_BH).sum(1)"),
            ("(cost_BH * pairs.weight_BH).mean(1)", "cost_BH.mean(1)"),
            ("strength, 1 / len(unit.pairs), unit.bag", "strength, 1.0, unit.bag"),
            ("strength, 1 / len(unit.pairs), unit.bag", "strength, 1 / len(unit.pairs), ()"),
            ("place[start + chosen], place[start + rejected]", "place[start + rejected], place[start + chosen]"),
            (
                "scores_EH.mean(1)[pairs.chosen_B], scores_EH.mean(1)",
                "scores_EH[:, 0][pairs.chosen_B], scores_EH.mean(1)",
            ),
        ]
    ),
    *(
        Mutation(file, old, new, "recipes/test_rl_reward_model.py")
        for file, old, new in [
            ("training/policy.py", "sum(branch.logprobs) - sum(before)", "sum(before) - sum(branch.logprobs)"),
            ("training/policy.py", "return gone / ", "return 0 * gone / "),
        ]
    ),
    *(
        Mutation("training/adversarial.py", old, new, "recipes/test_best_of_n.py")
        for old, new in [
            ("key=lambda place: golds[place])", "key=lambda place: -golds[place])"),
            ("golds[better] > golds[liked] and", ""),
            ("and chosen.reward < rejected.reward):", "):"),
            (
                "and chosen.reward < rejected.reward):",
                "and chosen.reward <= rejected.reward):",
            ),
            ('"chosen": chosen.trajectory.text', '"chosen": rejected.trajectory.text'),
            ("if row.trajectory.stop_reason is StopReason.STOP]", "]"),
            ("if row.trajectory.text != liked.trajectory.text]", "if row is not liked]"),
            ('seed_for(seed, "to people", group.task.id)', "None"),
            ("liked.reward - other.reward", "liked.reward"),
        ]
    ),
]
