"""Faults of the learner and of the losses and batches that it is handed."""

from tests.mutations import Mutation

LEARNER, POLICY = "training/test_learner.py", "training/test_policy.py"
CRITIC, BATCH = "training/test_actor_critic.py", "training/test_policy.py training/test_actor_critic.py"

_FAULTS = {
    ("training/local_learner.py", LEARNER): [
        ("known = bool(batch.key) and batch.key == self._kept.key", "known = True"),
        ("if batch.key and batch.key != self._kept.key:", "if batch.key != self._kept.key:"),
        ("if batch.key and batch.key != self._kept.key:", "if batch.key and not self._kept.key:"),
        ("parts = self._parts if batch.key else self._parts_once", "parts = self._parts"),
        ("if place not in self._found:", "if True:"),
        ("place = (name, row.examples[0], tuple(row.token_ids))", "place = (name, 0, ())"),
        ("            total += value\n        return {", "            total = value\n        return {"),
        ("    @torch.no_grad()\n    def forward(", "    def forward("),
        ("if POLICY in loss.reaches else None):", "if False else None):"),
        ("if POLICY in loss.reaches else None):", "):"),
        ("in loss.reaches if part in self._optimizers)", "in loss.reaches[:1])"),
        ("                beside=beside,\n", ""),
        ("self._optimizers[part].finite_norm() for part", "self._optimizers[part].grad_norm() for part"),
        (".step(rate, norm=norms[part])", ".step(rate, norm=1.0)"),
        ("        except TrainingError:\n            self._discard()\n", "        except TrainingError:\n"),
        ("        except BaseException:\n            self._discard()\n", "        except BaseException:\n"),
        ("        except BaseException:", "        except Exception:"),
        ("self._ranks)\n        self._discard()\n        self._kept", "self._ranks)\n        self._kept"),
        ('        self._discard()\n        self._kept.begin("")\n', "        self._discard()\n"),
        ("self._references[target].renew(", "dict("),
        ("reference if renewed else None\n", "None\n"),
        ("**{part: own for part, (_, own) in (beside or {}).items()}", "**{}"),
        ("self.body.logprobs(row, temperature)", "self.body.logprobs(row)"),
    ],
    ("training/local_learner.py", "training/test_pairwise.py"): [
        ("                together=batch.together,\n", ""),
        ("self._microbatch_tokens, together=batch.together)", "self._microbatch_tokens)"),
        ("self._read(examples, of_row, together=together)", "self._read(examples, of_row)"),
    ],
    ("training/local_learner.py", "training/test_reward.py"): [
        ('if getattr(model, "length_head", None) is None else model.scores_and_length', ""),
        ("with self.body.dropping(seed):", "if True:"),
    ],
    ("training/ranks.py", f"{LEARNER} {POLICY}"): [
        ("        ranks.agree(failure)\n        raise\n", "        ranks.agree(failure)\n"),
        ("for number in range(rows))", "for number in range(rows - 1))"),
    ],
    ("training/microbatch.py", "training/test_reward.py"): [
        ("[found[number] for number in range(len(examples))]", "list(found.values())"),
    ],
    ("training/microbatch.py", POLICY): [
        ("for example, part in zip(row.examples, parts, strict=True)", "for example, part in enumerate(parts)"),
    ],
    ("training/microbatch.py", "training/test_microbatch.py"): [
        ("        stack.enter_context(_FIXED_ORDER.held(optimizer.device))\n", ""),
        ("memory.fill_uninitialized_memory = False", "pass"),
        (
            "        finally:\n            with self._counted:",
            "        except ZeroDivisionError:\n            with self._counted:",
        ),
        (
            "            if not self._holders:\n                self._before",
            "            if True:\n                self._before",
        ),
        (
            "                if not self._holders:\n                    enabled",
            "                if True:\n                    enabled",
        ),
    ],
    ("training/learner.py", POLICY): [
        ("for number in row.examples for value", "for number in row.examples[::-1] for value"),
        ("values, dtype=torch.float64).to(like)", "values).to(like)"),
        ("tokens = {name: [numbers[i] for i in examples]", "tokens = {name: numbers"),
        ("examples=[self.examples[i] for i in examples]", "examples=self.examples[: len(examples)]"),
    ],
    ("training/policy.py", BATCH): [
        ('everything or any(any(tokens["advantages"][i]) for i in group)', "True"),
        ('everything or any(any(tokens["advantages"][i]) for i in group)', 'not any(tokens["advantages"][group[0]])'),
        ("for name, numbers_N in found.columns.items()", "for name, numbers_N in ()"),
        ("return batch.chosen(list(chain.from_iterable(taken)))", "return batch"),
    ],
    ("training/policy.py", POLICY): [
        ('"sampler_kl": -gap_N', '"sampler_kl": gap_N'),
        ('masked=self.importance == "masked"', "masked=False"),
        ("lowest=self.importance_floor", "lowest=0.0"),
        ('self.importance_level == "auto"', "True"),
        ("by_length(log_N.abs()", "by_length(log_N"),
        ("length_N > fmean", "length_N < fmean"),
        ('sampler_N=present("sampler_logprobs")', "sampler_N=old_N"),
        ('parts.keep("old", row, found.logprobs.detach)', "found.logprobs.detach()"),
        ('parts.keep("undropped", row, lambda: self._undropped(model, row)) if model.drops else old_N', "old_N"),
        ('advantages_N = present("advantages")', 'advantages_N = present("advantages").flip(0)'),
        ('reference_N=column("reference_logprobs")', "reference_N=old_N"),
        ("states, row, self.temperature, entropy", "states, row, entropy"),
        ('= ("ratio", "logprob_gap", "importance")', '= ("ratio", "importance")'),
        ("per_token | dict(told))", "dict(told))"),
        ("highest=self.tis_cap", "highest=1e9"),
        ("        if self.tis_cap:\n", "        if False:\n"),
        ("        with model.dropping(None):\n", "        if True:\n"),
        ("    with model.dropping(None):\n", "    if True:\n"),
    ],
    ("training/policy.py", CRITIC): [
        ("critic.values(row, states)", "critic.values(row, states.detach())"),
        ('old_values_N=column("values")', 'old_values_N=column("returns")'),
        ('column(name.removesuffix("_N"))', 'column("values")'),
        ("= (POLICY, CRITIC)", "= (POLICY,)"),
    ],
    ("training/beside.py", f"{CRITIC} training/test_beside.py"): [
        ("made.values_alone(row)", "made.values(row)"),
        ('present(need.columns[0].removesuffix("_N"))', "said_N.detach()"),
        ("return (self.part,)", "return ()"),
        ("need.reduce(self.algorithm, ", "self.algorithm.reduce("),
        ("if alone or part != CRITIC", "if alone"),
        ("options.critic_lr if need.lr is None else need.lr", "options.critic_lr"),
        ('told[f"{loss.part}_loss"] = told.pop("loss")', "pass"),
    ],
    ("training/supervised.py", "training/test_supervised.py"): [
        ("reduce.token_mean(loss_N, batch.counts.tokens)", "loss_N.mean()"),
        ("self.weight * reduce", "reduce"),
        (
            "loss_N = loss_of(logprobs_N)",
            "loss_N = logprobs_N",
        ),
    ],
    ("training/preference.py", "training/test_pairwise.py"): [
        ("anchor_N = logprobs(given, head)", "anchor_N = logprobs(states.detach(), head)"),
        ("batch.counts.sequences // TOGETHER", "len(row.examples) // TOGETHER"),
        ('batch.column("reference_logprobs", row, logprobs_N)', "logprobs_N.detach()"),
    ],
    ("training/unpaired.py", "training/test_unpaired.py"): [
        ("return max(0.0, fmean(", "return (fmean("),
        ("fmean(ours - theirs for", "fmean(theirs - ours for"),
        ("    if not moved:\n        return 0.0\n", ""),
        ('batch.units["good"][number] for number', 'batch.units["good"][0] for number'),
        ("reduce.pair_mean(found.loss_B, batch.counts.sequences)", "found.loss_B.mean()"),
        ('sides = {"good": good_E, "bad": ~good_E}', 'sides = {"good": good_E, "bad": good_E}'),
        ("for of in (sum, len)", "for of in (sum, sum)"),
    ],
    ("training/preference.py", "training/test_cached_reference.py"): [
        ("if any(_key(example) not in kept for example in examples):", "if True:"),
        ('kept.setdefault(_key(example), array("d", found))', 'kept[_key(example)] = array("d", found)'),
        ("sum(example.learned)", "0"),
        ('array("d", found)', 'array("d", [0.0 for _ in found])'),
    ],
    ("training/reward.py", "training/test_reward.py"): [
        ("_compared(scores_EH, pairs, self).sum() / len(units)", "_compared(scores_EH, pairs, self).mean()"),
        ("carried + self.overlap_weight * angle", "carried + angle"),
        ("carried + self.overlap_weight * angle", "carried"),
        ("overlap(parts.model.head[0].float(),", "overlap(parts.model.head[0].float().detach(),"),
        ("        if 0 not in row.examples:\n            return Share(carried, {})\n", ""),
        (
            'batch.units["gradient"][number] for number in row.examples',
            'g for g in batch.units["gradient"][: len(row.examples)]',
        ),
        ("loss.length * (apart.item() + angle)", "loss.length * apart.item()"),
        ("ranked + loss.length * apart, scores_EH)", "ranked, scores_EH)"),
        ("    if not loss.length:\n", "    if True:\n"),
    ],
    ("training/attributes.py", "training/test_attributes.py"): [
        ("error_E.sum() / batch.counts.sequences", "error_E.mean()"),
        (
            'batch.units["graded"][number] for number in row.examples',
            'one for one in batch.units["graded"][: len(row.examples)]',
        ),
    ],
    ("training/preference.py", "recipes/test_pairs.py"): [
        ("if needs_column(self.algorithm):", "if False:"),
        ('algorithm.unit == "pair" and (', "("),
    ],
    ("algorithms/load.py", "planning/test_costs.py"): [
        ("self.prompt_tokens + self.group * self.completion_tokens", "self.group * self.completion_tokens"),
        ("self.group * self.completion_tokens)", "self.completion_tokens)"),
        ("math.ceil(self.tokens / self.microbatch_tokens)", "self.tokens // self.microbatch_tokens"),
    ],
    ("training/supervised.py", "recipes/test_rl.py::test_text_is_learned_beside"): [
        ("(False, *[True] * (len(ids) - 1))", "(True,) * len(ids)"),
    ],
    ("training/supervised.py", "recipes/test_rl.py::test_text_that_cannot_be_learned_is_refused"): [
        (" if len(text.split()) > 1]", "]"),
    ],
    ("training/optimizer.py", "training/test_optimizer.py"): [
        ("narrow(mine, exact, self._shards.offset(weight))", "weight.copy_(master)"),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
