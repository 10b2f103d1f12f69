"""Faults of attribute heads: what they learn, what the gate learns, and how one score is made of them."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("objectives/reward_models.py", old, new, "objectives/test_attributes.py")
        for old, new in [
            (".sum(1) / count_E", ".mean(1)"),
            ("count_E = known_EK.sum(1)", "count_E = known_EK.sum(1).clamp(max=1)"),
            ("    if not bool((count_E > 0).all()):\n", "    if False:\n"),
            ("rated_EK.masked_fill(~known_EK, 0.0)).square()", "rated_EK.masked_fill(~known_EK, 0.0)).abs()"),
            ("squared_EK.masked_fill(~known_EK, 0.0)", "squared_EK"),
            ("attributes_EK - attributes_EK.mean(0)", "attributes_EK"),
            ("    if spread == 0:\n        return attributes_EK", "    if False:\n        return attributes_EK"),
            ("sum(0) / spread", "sum(0) / spread.sqrt()"),
            ('    require_one_shape("rating', '    0 and require_one_shape("rating'),
        ]
    ),
    *(
        Mutation("training/attributes.py", old, new, "training/test_attributes.py")
        for old, new in [
            ("squared_E[known_E] for name", "squared_E.nan_to_num() for name"),
            ("(one.ratings[name] - mean) / spread if", "(one.ratings[name] - mean) if"),
            ("(one.ratings[name] - mean) / spread if", "one.ratings[name] / spread if"),
            ("~rated_EK.isnan()", "rated_EK.isnan().logical_or(True)"),
            ("zip(row.examples, zip(prompts_ED", "zip(range(99), zip(prompts_ED"),
        ]
    ),
    *(
        Mutation("training/attributes.py", old, new, "training/test_gate.py")
        for old, new in [
            ("(start + a, start + b, number)", "(a, b, number)"),
            ("unit.examples[0].prefix, len(numbers)", "start, len(numbers)"),
            ("1 / prompt_B.bincount()[prompt_B].to", "1 / prompt_B.bincount()[prompt_B].clamp(max=1).to"),
            ("counted_EK[chosen] - counted_EK[rejected]", "counted_EK[rejected] - counted_EK[chosen]"),
            ("counted_EK = mixture.counted(read.attributes_EK)", "counted_EK = read.attributes_EK"),
            ("read.prompts_ED[chosen]", "read.prompts_ED[: len(chosen)]"),
            ("_Learner(mixture, choices.some(~judged_B))", "_Learner(mixture, choices)"),
            ("updates = costs.index(min(costs))", "updates = LONGEST"),
            ("updates = costs.index(min(costs))", "pass"),
            ("updates = costs.index(min(costs))", "updates = costs.index(max(costs))"),
            ("(choices.prompts_BD - mean_D) / spread_D)", "choices.prompts_BD - mean_D)"),
            ("    gate.inner.weight.div_(spread_D)\n", ""),
            ("    gate.inner.bias.sub_(gate.inner.weight @ mean_D)\n", ""),
            ("copy.deepcopy(mixture.gate)", "mixture.gate"),
            ("scale=learner.log_scale.exp().item()", "scale=mixture.scale"),
            ("spread_D = spread_D.where(spread_D > 0, 1.0)", "pass"),
            ("doubt = 1 / (self._choices.weight_B.sum().item() + 2)", "doubt = 0.0"),
            ("self._choices.weight_B.sum().item() + 2", "len(self._choices.weight_B) + 2"),
            ("(cost_B * choices.weight_B).sum() / choices.weight_B.sum()", "cost_B.mean()"),
            ("self.log_scale.exp() * (self.gate", "(self.gate"),
            ("[self.gate.outer.bias, self.log_scale]", "[self.log_scale]"),
            ("batch_indices(prompts, prompts, 0, seed)", "batch_indices(prompts, prompts, 0, id(choices))"),
        ]
    ),
]
