"""Faults of reward models: what they learn by, how they are judged, and what their scores mean afterwards."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("objectives/debias.py", old, new, "objectives/test_debias.py")
        for old, new in [
            ("(chosen_B + rejected_B).square()", "(chosen_B - rejected_B).square()"),
            ("(chosen_B + rejected_B).square()", "(chosen_B + rejected_B.detach()).square()"),
            ("first_E - first_E.mean()", "first_E"),
            ("second_E - second_E.mean()", "second_E"),
            ("spread.sqrt()", "spread"),
            ("    if spread == 0:\n", "    if False:\n"),
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
        Mutation("rollouts/scorer.py", old, new, "training/test_reward.py")
        for old, new in [
            (
                "{i: tuple(scores) for i, scores in zip(row.examples,",
                "{i: tuple(scores) for i, scores in zip(range(99),",
            ),
        ]
    ),
    *(
        Mutation("rewards/learned.py", old, new, "rewards/test_learned.py")
        for old, new in [
            ("min(scores),", "max(scores),"),
            ("- penalty * pvariance(scores)", "- pvariance(scores)"),
            ("- penalty * pvariance(scores)", "+ penalty * pvariance(scores)"),
            ("COMBINATIONS[self.use](scores, self.penalty)", 'COMBINATIONS["mean"](scores, self.penalty)'),
            ("pvariance(scores) ** 0.5", "pvariance(scores)"),
            ("if self._last[0] != asked:", "if True:"),
            ("if self._last[0] != asked:", "if not self._last[0]:"),
            ("        with self._lock:\n", "        if True:\n"),
            ("len(found) != len(episodes) or not", "not"),
            (" or not all(len(scores) for scores in found)", ""),
            ("if not 0 <= self.penalty < math.inf:", "if False:"),
        ]
    ),
    *(
        Mutation("rewards/combine.py", old, new, "rewards/test_learned.py")
        for old, new in [
            ('math.inf if getattr(reward, "patient", False) else self.timeout_s', "self.timeout_s"),
        ]
    ),
    *(
        Mutation("rollouts/hacking_signals.py", old, new, "rollouts/test_hacking_signals.py")
        for old, new in [
            ("text[:BEGINNING]", "text"),
            ('.replace("\\u2019", "\'")', ""),
            (
                "zip(turn.token_ids, turn.token_ids[1:], strict=False)",
                "zip(turn.token_ids, turn.token_ids, strict=False)",
            ),
            ("reward - fmean(earned)", "reward"),
            ("count - fmean(tokens)", "count"),
            ("if spread > 1e-9 else None", "if spread > 1e-9 else 0.0"),
            ("re.MULTILINE", "0"),
            ("    re.IGNORECASE,\n", ""),
        ]
    ),
    *(
        Mutation("rollouts/metrics.py", old, new, "rollouts/test_metrics.py")
        for old, new in [
            ("(_solved(scores, outcome) if outcome else {})", "_solved(scores, outcome or 'learned')"),
            ("fmean(not part[name].applicable for", "fmean(part[name].applicable for"),
        ]
    ),
    *(
        Mutation(file, old, new, "recipes/test_rl_reward_model.py")
        for file, old, new in [
            ("training/policy_batch.py", "sum(branch.logprobs) - sum(before)", "sum(before) - sum(branch.logprobs)"),
            ("training/policy_batch.py", "return gone / ", "return 0 * gone / "),
            ("rollouts/scorer.py", "if len(prompt) + len(said) + len(self.tail) > self.most:", "if False:"),
            ("rollouts/scorer.py", "        if self.tail:\n", "        if False:\n"),
            ("rollouts/scorer.py", "        except TemplateError:\n", "        except ZeroDivisionError:\n"),
            ("rollouts/scorer.py", "takewhile(lambda token: token not in self.chat.stop_ids, ids)", "ids"),
            ("setup/reward_models.py", "        if longest > self.facts.most:\n", "        if False:\n"),
            ("setup/reward_models.py", 'if use != "mean" and unknown:', "if False:"),
            ("rollouts/scorer.py", "stops[-1] + 1 :", "stops[0] + 1 :"),
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
    Mutation(
        "setup/heldout.py",
        "[weight * scores[name].total for",
        "[scores[name].total for",
        "recipes/test_rl_reward_model.py",
    ),
    *(
        Mutation("setup/heldout.py", old, new, "setup/test_heldout.py")
        for old, new in [
            ("patience > 0 and ", ""),
            ("0 < kl_budget < metrics", "kl_budget < metrics"),
            ("0 < kl_budget < metrics", "0 < kl_budget <= metrics"),
            ("    if past_budget(metrics, kl_budget):\n        return None\n", ""),
            ("max(found[-patience:]) <= max(found[:-patience])", "found[-1] < max(found[:-1])"),
            ('BY = (GOLD, "accuracy", "reward")', 'BY = ("accuracy", "reward", GOLD)'),
        ]
    ),
]
