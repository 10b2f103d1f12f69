"""Faults of process rewards: a span at the wrong token, paid twice or not at all, or left out of a total."""

from tests.mutations import Mutation

SPANS, TOKENS = "rewards/test_spans.py", "rollouts/test_step_rewards.py"
STEPS, PROCESS, INPUTS = "objectives/test_steps.py", "algorithms/test_process_rewards.py", "training/test_inputs.py"

_FAULTS = {
    ("rewards/reward.py", SPANS): [
        ("if value.spans and (wrong", "if False and (wrong"),
        ("value=math.nan, spans=())", "value=math.nan)"),
        ("if not 0 <= span.turn < len(texts):", "if not span.turn < len(texts):"),
        ("if not 0 <= span.turn < len(texts):", "if not 0 <= span.turn <= len(texts):"),
        ("0 <= span.start < span.end <= len(texts[span.turn])", "span.start < span.end <= len(texts[span.turn])"),
        ("0 <= span.start < span.end <= len(texts[span.turn])", "0 <= span.start <= span.end <= len(texts[span.turn])"),
        ("0 <= span.start < span.end <= len(texts[span.turn])", "0 <= span.start < span.end"),
        ("<= len(texts[span.turn]):", "<= len(texts[span.turn]) + 1:"),
        ("or not math.isfinite(span.value):", "or False:"),
        ('return "" if math.isfinite(total) else', 'return "" if True else'),
        ("if episode.texts and seat and seat not in episode.texts:", "if False:"),
        ("texts = episode.turn_texts(seat)", "texts = episode.turn_texts()"),
    ],
    ("rewards/reward.py", TOKENS): [
        ("if not seat and len(episode.texts) > 1:", "if False:"),
        ("if not seat and len(episode.texts) > 1:", "if len(episode.texts) > 1:"),
    ],
    ("rewards/combine.py", SPANS): [
        ("[weight * score.total for", "[weight * score.value for"),
        ("value=weight * span.value)", "value=span.value)"),
        ("            if score.applicable\n            for span", "            for span"),
    ],
    ("rewards/combine.py", TOKENS): [
        ("for name, weight in self.weights.items() if weight]", "for name, weight in self.weights.items()]")
    ],
    ("rewards/custom.py", SPANS): [
        ("math.isfinite(score.total)", "math.isfinite(score.value)"),
        ("bounds[0] <= score.total <= bounds[1]", "bounds[0] <= score.value <= bounds[1]"),
        ("not (0 <= score.total <= 1)", "not (0 <= score.value <= 1)"),
        ("self.beyond.append(score.total)", "self.beyond.append(score.value)"),
    ],
    ("testing/rewards.py", SPANS): [
        ("bounds[0] <= score.total <= bounds[1]", "bounds[0] <= score.value <= bounds[1]"),
        ("if score.unparsed and score.total > 0:", "if score.unparsed and score.value > 0:"),
        ("if score.total != 1.0", "if score.value != 1.0"),
        ("alike and places[0] == places[1] and", "alike and"),
        ("(a.value, b.value), *((x.value, y.value)", "(a.value, b.value), *((x.turn, y.turn)"),
    ],
    ("setup/heldout.py", SPANS): [("scores[name].total for", "scores[name].value for")],
    ("rollouts/metrics.py", SPANS): [
        ("score.total >= SOLVED", "score.value >= SOLVED"),
        ("part[name].total for", "part[name].value for"),
    ],
    ("rollouts/step_rewards.py", TOKENS): [
        ("bisect_left(of_turn, span.end - given)", "bisect_left(of_turn, span.start - given)"),
        ("bisect_left(of_turn, span.end - given)", "bisect_left(of_turn, span.end - given + 1)"),
        ("bisect_left(of_turn, span.end - given)", "bisect_left(of_turn, span.end)"),
        ("firsts[span.turn] + ", ""),
        ("if span.end > given:", "if True:"),
        ("if span.end > given:", "if span.start >= given:"),
        ("found.get(token, 0.0) + span.value", "span.value"),
        ("return len(turn.text) - ends[-1], ends", "return 0, ends"),
    ],
    ("rollouts/episodes.py", TOKENS): [
        ("step_rewards=step_rewards(trajectory, environment.reward.spans(own), chat)", "step_rewards={}"),
        ("{name: tuple(turn.text for turn in sampled) for name, sampled in turns.items()}", "{}"),
    ],
    ("objectives/steps.py", STEPS): [
        ("(rewards_R - paid_R)", "(rewards_R + paid_R)"),
        (".round(decimals=DECIMALS)", ""),
        ("rewards_R.where(paid_R == 0,", "rewards_R.where(paid_R == 9,"),
        ("return returns(normalised_N, row_N)", "return returns(normalised_N, 0 * row_N)"),
        ("return returns(normalised_N, row_N)", "return normalised_N"),
    ],
    ("algorithms/rollout.py", PROCESS): [
        (
            "return self._steps()[0] + self.at_end(self.outcome_R)",
            "return self._steps()[0] + self.at_end(self.rewards_R)",
        ),
        ("return self._steps()[0] + self.at_end(self.outcome_R)", "return self.at_end(self.rewards_R)"),
        ("torch.tensor(self.seats)[row_S]", "None"),
        ("self.group_R[row_S], torch", "0 * self.group_R[row_S], torch"),
        ("row_S = self.row_N[end_N]", "row_S = self.row_N[steps_N != 0]"),
        ("if of_PS.shape[-1] > 1 else torch.zeros_like(of_PS)", "if of_PS.shape[-1] > 1 else of_PS"),
        ("if self.step_rewards_N is None or", "if False or"),
    ],
    ("algorithms/grpo.py", PROCESS): [
        ("rollout.outcome_R if self.process_rewards else rewards_R", "rewards_R"),
        ("advantages_N + steps_N, size_R", "steps_N, size_R"),
        ("advantages_N + steps_N, size_R", "advantages_N, size_R"),
        ("size_R + rollout.per_row(steps_N.abs())", "size_R"),
        ("(*reference, StepRewards()) if self.process_rewards else reference", "reference"),
        ("if self.process_rewards and not self.token_advantages:", "if False:"),
        ("rollout.steps / len(rewards_R)", "rollout.steps"),
    ],
    ("algorithms/gspo.py", PROCESS): [("    token_advantages: ClassVar[bool] = False\n", "")],
    ("algorithms/grpo_bucketed.py", PROCESS): [("    token_advantages: ClassVar[bool] = False\n", "")],
    ("algorithms/vineppo.py", PROCESS): [("    token_advantages: ClassVar[bool] = False\n", "")],
    ("algorithms/ppo.py", PROCESS): [
        (
            "rollout.paid_N if self.process_rewards else rollout.at_end(rollout.rewards_R)",
            "rollout.at_end(rollout.rewards_R)",
        ),
        ("(StepRewards(),) if self.process_rewards else ()", "()"),
    ],
    ("training/inputs.py", INPUTS): [
        ("[token in paid for", "[bool(paid.get(token)) for"),
        ("paid.get(token, 0.0) for", "paid.get(token + 1, 0.0) for"),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
