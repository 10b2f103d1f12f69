"""Faults of consensus and agreement: a sign, a tie, a denominator, a prior, who counts."""

from tests.mutations import Mutation

RANKINGS = "annotation/test_rankings.py"
CONSENSUS = "annotation/test_consensus.py"
AGREEMENT = "annotation/test_agreement.py"
METHODS = "annotation/aggregation"

MUTATIONS = [
    *(
        Mutation("annotation/acquisition.py", old, new, "annotation/test_acquisition.py")
        for old, new in [
            ("return pvariance([_sigmoid(margin) for", "return pvariance([margin for"),
            ("return pvariance([_sigmoid(margin) for margin in margins])", "return 0.0"),
            ("_entropy(fmean(probs)) - fmean(", "_entropy(fmean(probs)) + fmean("),
            ("_entropy(fmean(probs)) - fmean(_entropy(p) for p in probs)", "_entropy(fmean(probs))"),
            ("-sum(x * math.log(x) for x in (p, 1 - p) if x > 0)", "-(p * math.log(p) if p else 0)"),
            ("probs = [_sigmoid(margin)", "probs = [_sigmoid(abs(margin))"),
            ("[a - b for a, b in", "[a + b for a, b in"),
            ("return fmean(WORTH[by]", "return sum(WORTH[by]"),
            ("for pair in pairs) if pairs else 0.0", "for pair in pairs)"),
            ("-worths[place]", "worths[place]"),
            ("sorted(order, key=", "sorted(sorted(order), key="),
            ("random.Random(seed)", "random.Random(0)"),
            (")[:count]", ")"),
        ]
    ),
    *(
        Mutation("recipes/annotate/importing.py", old, new, "recipes/test_annotate.py")
        for old, new in [
            ("_worth_asking(config, new, quiet) if config.ask else new", "new"),
            ("[item for item in items if item.name not in names]", "items"),
            ("if item.expected is None]", "]"),
            ("item.expected is not None or item.name in asked", "item.name in asked"),
            ("config.ask, seed=config.seed)", "config.ask, seed=0)"),
            ("    if config.choose == RANDOM:\n", "    if True:\n"),
            ('item.details[MOVED]["kl"] for', '-item.details[MOVED]["kl"] for'),
            ("fmean(answer.moved for answer in answers)", "fmean({a.text: a.moved for a in answers}.values())"),
            ("fmean(answer.moved for answer in answers)", "sum(answer.moved for answer in answers)"),
            ("kl_from(before, policy.model, read", "kl_from(policy.model, before, read"),
            ("            refuse_incomparable(", "            id("),
            ("first.setdefault(answer.text, answer)", "first[answer.text] = answer"),
            ("if len({answer.text for answer in answers}) >= fewest", "if len(answers) >= fewest"),
            ("and KINDS[kind].ranking is None:", "and False:"),
            ("len(items) - len(new), skipped", "0, skipped"),
            ("skipped, len(new) - len(chosen)", "skipped, 0"),
            ("[task for task in every if task.id not in there]", "every"),
            ("return known + items,", "return items,"),
            ("model, tasks[i].id, j)", "model, i, j)"),
            ("model, tasks[i].id, j)", "model, j)"),
        ]
    ),
    *(
        Mutation("recipes/annotate/active_selection.py", old, new, "recipes/test_annotate.py")
        for old, new in [
            ("if scorer.model.members < 2:", "if False:"),
            ("if not scorer.model.comparable:", "if False:"),
            ("    if short is not None:\n", "    if False:\n"),
            ("            except RewardError as problem:\n", "            except ZeroDivisionError as problem:\n"),
            ("    if way not in WAYS:\n", "    if False:\n"),
            ("if ask < 0:", "if False:"),
            ("if not ask and (way != RANDOM or reward_model or kl_from):", "if False:"),
            ("(way != RANDOM or reward_model or kl_from)", "(way != RANDOM or reward_model)"),
            ("if way in WORTH and not reward_model:", "if False:"),
            ("if reward_model and way not in WORTH:", "if False:"),
            ("if kl_from and way != MOVED:", "if False:"),
            ("not (kl_from and models):", "not kl_from:"),
            ("not (kl_from and models):", "not models:"),
        ]
    ),
    *(
        Mutation("evaluation/policy_kl.py", old, new, "evaluation/test_policy_kl.py")
        for old, new in [
            ("(theirs, earlier.head, mine, policy.head,", "(mine, policy.head, theirs, earlier.head,"),
            ("found[number] += nats", "found[number] = nats"),
            ("(True,) * len(y))", "(False,) + (True,) * (len(y) - 1))"),
            ("max(microbatch_tokens, longest)", "microbatch_tokens"),
            ("            on_tokens(len(row.token_ids))\n", "            on_tokens(1)\n"),
            ("if load_tokenizer(tokenizer_of(earlier)).get_vocab() != words.get_vocab():", "if False:"),
            ("if before.vocabulary != now.vocabulary:", "if False:"),
            ("if before.context < now.context:", "if True:"),
            ("if longest + max_new_tokens > before.context:", "if longest > before.context:"),
            ("if longest + max_new_tokens > before.context:", "if longest + max_new_tokens >= before.context:"),
            ("longest = max((len(", "longest = min((len("),
        ]
    ),
    Mutation(
        "annotation/store/projects.py", ".where(Project.name == name)\n    return set(", "\n    return set(",
        "recipes/test_annotate.py",
    ),
    *(
        Mutation("annotation/rankings.py", old, new, RANKINGS)
        for old, new in [
            ("!= row.place:", "== row.place:"),
            ("(said.item, said.annotator), row.place", "said.item, row.place"),
            ("(*groups, failed) for completion", "groups for completion"),
            ("len(set(named)) < len(named)", "len(set(named)) > len(named)"),
            ("    if not named:\n", "    if False:\n"),
            ("for group in groups if group)", "for group in groups)"),
            ("isinstance(value, bool) or not isinstance(value, str | int)", "not isinstance(value, str | int)"),
            ("isinstance(one, bool) or not isinstance(one, int)", "not isinstance(one, int)"),
            ("or one < 0:", "or one < -1:"),
            ("combinations(sorted(place), 2)", "combinations(place, 2)"),
            ("if not {first, second} <= set(ranking.failed):", "if True:"),
            ("(place[first] < place[second]) - (place[first] > place[second])", "place[first] < place[second]"),
            ("(place[first] < place[second]) -", "(place[first] <= place[second]) -"),
            ("(len(tier) + 1) / 2", "len(tier) / 2"),
            ("(len(tier) + 1) / 2", "1"),
            ("for level, tier in enumerate(ranking.tiers)", "for level, tier in enumerate(ranking.groups)"),
        ]
    ),
    *(
        Mutation("annotation/consensus.py", old, new, CONSENSUS)
        for old, new in [
            ("<= SAME or self", "<= 0 or self"),
            ("self.second) + SAME:", "self.second) - SAME:"),
            ("self.neither > max(self.first, self.second) + SAME", "False"),
            ("return 1 if self.first > self.second else -1", "return -1 if self.first > self.second else 1"),
            ("wins[second] -= verdict", "pass"),
            ("(one in failed, -wins[one])", "(one in failed, wins[one])"),
            ("(one in failed, -wins[one])", "-wins[one]"),
            ("pair if verdict > 0 else pair[::-1]", "pair"),
            ("for pair, verdict in verdicts.items() if verdict]", "for pair, verdict in verdicts.items()]"),
            ("if level[chosen] < level[rejected]]", "if level[chosen] <= level[rejected]]"),
            ("pairs.sort(key=lambda pair: (level[pair[0]], level[pair[1]], pair))", "pass"),
            ("return 2 * sum(", "return 3 * sum("),
            ("> len(judged)", ">= len(judged)"),
            ("for ranking in rankings if any(", "for ranking in rankings if True or any("),
        ]
    ),
    *(
        Mutation("annotation/aggregation/majority.py", old, new, f"{METHODS}/test_majority.py")
        for old, new in [
            ("(1, 0, -1)", "(-1, 0, 1)"),
            ("n[o] / n.total()", "n[o] / len(said)"),
            ("+= 1", "= 1"),
        ]
    ),
    *(
        Mutation("annotation/aggregation/dawid_skene.py", old, new, f"{METHODS}/test_dawid_skene.py")
        for old, new in [
            ("(vote.second, vote.first, -vote.outcome),", ""),
            ("(vote.second, vote.first, -vote.outcome),", "(vote.second, vote.first, vote.outcome),"),
            ("for outcome in (1, 0, -1)", "for outcome in (-1, 0, 1)"),
            ("likely.get(outcome, 0.0)", "likely.get(-outcome, 0.0)"),
            ("people[person], outcome)", "0, outcome)"),
        ]
    ),
    *(
        Mutation("annotation/aggregation/strengths.py", old, new, METHODS)
        for old, new in [
            ("1 + point[many : many + people]", "point[many : many + people]"),
            ("found.by_weight - (a - 1)", "found.by_weight + (a - 1)"),
            ("found.by_weight - (a - 1) / KAPPA**2", "found.by_weight"),
            ("found.by_strength - s / SIGMA**2", "found.by_strength"),
            ("found.by_strength - s / SIGMA**2", "found.by_strength - s / SIGMA"),
            ("by_weight - by_weight.mean(), found", "by_weight, found"),
            ("- float(s @ s)", "+ float(s @ s)"),
            ("(2 * KAPPA**2)", "KAPPA**2"),
            ("return -value, -gradient", "return value, gradient"),
            ("np.linalg.inv(block) @ centre", "block @ centre"),
            ("np.eye(len(members)) - 1 / len(members)", "np.eye(len(members))"),
            ("(2 * step)", "step"),
            ("block[:, column] -= change", "block[:, column] += change"),
        ]
    ),
    *(
        Mutation("annotation/aggregation/bradley_terry.py", old, new, f"{METHODS}/test_bradley_terry.py")
        for old, new in [
            ("gap = s[first] - s[second]", "gap = s[second] - s[first]"),
            ("d = a[person] * gap", "d = gap"),
            ("by_d = outcome / 2 -", "by_d = outcome -"),
            ("by_d = outcome / 2 -", "by_d = outcome / 2 +"),
            ("- np.bincount(second, a", "+ np.bincount(second, a"),
            ("a[person] * by_d, len(s)) - np", "by_d, len(s)) - np"),
            ("np.bincount(person, gap * by_d", "np.bincount(person, by_d"),
            ("value += tied * log_nu + log_nu - 2 * log_equals", "value += tied * log_nu"),
            ("tied - np.exp(log_nu - log_z).sum() + 1", "tied - np.exp(log_nu - log_z).sum()"),
            ("- 2 * math.exp(log_nu - log_equals)", "- math.exp(log_nu - log_equals)"),
            ("math.log(2), log_nu)", "math.log(3), log_nu)"),
            ("if len(found.extra) else 0.0", "if False else 0.0"),
            ("math.exp(gap / 2), math.exp(-gap / 2)", "math.exp(gap), math.exp(-gap)"),
            ("total = up + down + nu", "total = up + down"),
            ("Odds(up / total, nu / total, down / total)", "Odds(down / total, nu / total, up / total)"),
        ]
    ),
    *(
        Mutation("annotation/aggregation/plackett_luce.py", old, new, f"{METHODS}/test_plackett_luce.py")
        for old, new in [
            ("np.exp(found.strengths[item][j] - found", "np.exp(found.strengths[item][i] - found"),
            ("by_x * a[person][:, None])", "by_x)"),
            ("(by_x * raw).sum(axis=1)", "by_x.sum(axis=1)"),
            ("place + len(tier)] = place\n", "place + len(tier)] = 0\n"),
            ("weight[:, None] * raw", "raw"),
            ("np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]", "np.cumsum(mass, axis=1)"),
            ("np.take_along_axis(left, drawn.since, axis=1)", "left"),
            ("value = float((x - log_from)[there].sum())", "value = float((x + log_from)[there].sum())"),
            ("1.0 - mass * np.cumsum(shares, axis=1)", "1.0 - mass * shares"),
            ("1.0 - mass * np.cumsum(shares, axis=1)", "-mass * np.cumsum(shares, axis=1)"),
            ("np.where(there, 1 / drawn_from, 0.0)", "1 / drawn_from"),
        ]
    ),
    *(
        Mutation("annotation/agreement.py", old, new, AGREEMENT)
        for old, new in [
            ("in units.items() if len(ranks) > 1}", "in units.items()}"),
            ("np.repeat(counts, list(shared.values()), axis=0)", "counts"),
            ('level_of_measurement="ordinal"', 'level_of_measurement="nominal"'),
            ('level_of_measurement="ordinal"', 'level_of_measurement="interval"'),
            ("len(ranks) < 2 or any", "len(ranks) < 1 or any"),
            ("or any(one.keys() != ranks[0].keys() for one in ranks)", "or False"),
            ("m * (n + 1) / 2", "m * n / 2"),
            ("m * m * (n**3 - n) - m * tied", "m * m * (n**3 - n)"),
            ("m * m * (n**3 - n) - m * tied", "m * m * (n**3 - n) - tied"),
            ("12 * s / most if most else None", "12 * s / max(most, 1)"),
            ("if ranking.annotator != who]", "]"),
            ("interval[1] < (0.5", "interval[0] < (0.5"),
            ("(0.5 + level) / 2", "level"),
            ("(0.5 + level) / 2", "0.5"),
            ("and level > 0.5 and", "and"),
            ("if (chosen, rejected) in pairs.get(vote.item, ()):", "if True:"),
            ("(1 if chosen == vote.first else -1)", "1"),
            ("(1 + vote.outcome *", "(1 - vote.outcome *"),
        ]
    ),
]  # fmt: skip
