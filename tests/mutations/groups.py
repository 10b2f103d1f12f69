"""Faults of rewards that see groups, and of what checks that groups are large enough."""

from tests.mutations import Mutation

REWARD, GROUPS = "rewards/test_reward.py", "rewards/test_groups.py"

_FAULTS = {
    ("rewards/custom.py", "examples/test_court.py"): [
        ("if not isinstance(value, Mapping):", "if True:"),
        ("if one is None else self._score(episode, one)", "if one is None else Score(1.0)"),
    ],
    ("rewards/reward.py", "examples/test_court.py"): [
        ("if other := [seat for seat in by_seat if episode.views and seat not in episode.views]:", "if other := []:"),
    ],
    ("rewards/reward.py", REWARD): [
        (
            "return [[next(returned) for _ in group.episodes] for group in groups]",
            "return [list(returned) for _ in groups]",
        ),
        ("if small := [group for group in groups if len(group.episodes) < min_group_of(reward)]:", "if small := []:"),
        ("< min_group_of(reward)]", "<= min_group_of(reward)]"),
        ("    if not episodes:\n        return [[] for _ in groups]\n", ""),
        ("if values is None or len(values) != len(groups):", "if values is None:"),
        ("if values is None or len(values) != len(groups):", "if values is not None and len(values) != len(groups):"),
        ("_checked(name, group.episodes, value)", "cast(list[Score], value)"),
    ],
    ("rewards/reward.py", GROUPS): [
        ("return min_group_of(self.reward)", "return 1"),
        ('    role = "monitor"\n', '    role = "rule"\n'),
    ],
    ("rewards/combine.py", "rewards/test_combine.py rewards/test_learned.py"): [
        ('if role_of(reward) == "verifier"]', "]"),
        ('if role_of(reward) != "monitor"}', "}"),
        ("if verifiers or asked or any(math.isinf(most) for _, most in judges.values()):", "if verifiers or asked:"),
        ("if most == 1)", ")"),
        (" or bounds_of(found) is not None)", ")"),
        ('(role_of(found) == "verifier" or', "(True or"),
    ],
    ("rewards/combine.py", GROUPS): [
        ("return max(min_group_of(reward) for reward, _ in self.parts)", "return min_group_of(self.parts[0][0])"),
        ('if role_of(reward) != "monitor"}', "}"),
        ('if weight and role_of(reward) == "monitor":', "if False:"),
        ("        return compares(reward.reward)\n", "        return False\n"),
        ('return reward.mode == "group" if isinstance(reward, CustomReward) else', "return"),
        ("else not isinstance(reward, EpisodeReward)", "else False"),
    ],
    ("rewards/custom.py", GROUPS): [
        ("with scoring(self.name, group.episodes[0]):", "if True:"),
        ("    async def unreadable(self", "    async def unread(self"),
        ('if self.mode == "group":', "if False:"),
        ('{**columns, "group": group}', "columns"),
        ("(_UNBOUNDED if self.beyond else None)", "None"),
        ("bounds and not bounds[0] <= score.total <= bounds[1]:", "False:"),
    ],
    ("rewards/custom.py", "rewards/test_custom.py rewards/test_trl.py"): [
        (
            "return [[next(scores) for _ in group.episodes] for group in groups]",
            "return [list(scores) for _ in groups]",
        ),
    ],
    ("rewards/check.py", "rewards/test_check.py"): [
        ("await asked(groups[::-1]))[::-1])", "await asked(groups)))"),
        ("group.episodes[::-1]) for group in groups]", "group.episodes) for group in groups]"),
        ("list(scores)[::-1] for scores in await asked(turned)", "list(scores) for scores in await asked(turned)"),
        ("    if role_of(reward) not in ROLES:\n", "    if False:\n"),
        ('if role_of(reward) != "verifier" or', "if False or"),
    ],
    ("rewards/check.py", GROUPS): [('!= "verifier" or min_group_of(reward) > 1:', '!= "verifier":')],
    ("rollouts/episodes.py", "rollouts/test_episodes.py"): [("!= [len(of) for of in played]:", "== []:")],
    ("rollouts/episodes.py", GROUPS): [("    need_group(environment, completions_per_prompt, COMPLETIONS)\n", "")],
    ("rollouts/monte_carlo_values.py", GROUPS): [
        ('    need_group(environment, states.samples, "the number of continuations of a state")\n', "")
    ],
    ("setup/sampling.py", "recipes/test_rl.py"): [
        (
            '    for size, name in ((options.completions_per_prompt, "`completions_per_prompt`"), *further):',
            "    for size, name in further:",
        ),
        ("    if options.eval_every:\n        need_group", "    if False:\n        need_group"),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
