"""Faults of sampling ahead of training."""

from tests.mutations import Mutation

AHEAD, SHARED, DRAWS = "rollouts/test_ahead.py", "rollouts/test_shared_engine.py", "rollouts/test_draws.py"
FINISHED = "rollouts/test_as_finished.py"

_FAULTS = {
    ("rollouts/ahead.py", AHEAD): [
        ("self._published + self.staleness + 1", "self._published + self.staleness + 2"),
        ("self._published + self.staleness + 1", "self._published + self.staleness"),
        ("self._shared.at_least(step - self.staleness)", "self._shared.at_least(step - self.staleness - 1)"),
        ("self._running < self._at_once and", "True and"),
        ("AT_ONCE = 2", "AT_ONCE = 1"),
        ("        self._publish(step)\n", ""),
        ("self._error, self._next = self._error or error, self._steps", "self._error = self._error or error"),
        ("        self._shared.close()\n", ""),
        ("        check()\n", "        pass\n"),
        ("return self._done.pop(step)", "return self._done.pop(max(self._done))"),
        ("(step - step_of(version), tokens)", "(step - step_of(version), 1)"),
        ("oldest = max(", "oldest = min("),
        ("if oldest > staleness:", "if False:"),
        ("yield end - first, version", "yield end, version"),
    ],
    ("rollouts/as_finished.py", FINISHED): [
        ("self._published + self.staleness + 1, self._steps", "self._published + self.staleness + 2, self._steps"),
        ("min(self._published + self.staleness + 1, self._steps) -", "self._published + self.staleness + 1 -"),
        ("- under_way - waiting\n", "- under_way\n"),
        ("sum(each.accepted is not None for", "sum(True for"),
        ("- under_way - len(self._finished)", "- under_way"),
        ("begun = count + len(self._finished) + self._under_way", "begun = count"),
        (
            "            elif began < self._next - self.staleness:",
            "            elif began < self._next - self.staleness - 1:",
        ),
        (
            "for each, began in self._finished if began < self._next - self.staleness]",
            "for each, began in self._finished if False]",
        ),
        ("                self._evicted.append(draw)\n", ""),
        ("        self._evicted += old\n", ""),
        ("                task.cancel()\n                cancelled", "                cancelled"),
        ("accepted += each.accepted is not None", "accepted += 1"),
        ("or count == self._rolling.sampler.most", "or False"),
        ("evicted, self._evicted = self._evicted, []", "evicted = self._evicted"),
        ("            self._next = step + 1\n", ""),
        ("        self._publish(step)\n", ""),
        ("raise raised(self._error, self._check)", "raise self._error"),
        ("                    if self._closed:\n", "                    if False:\n"),
    ],
    ("rollouts/shared_engine.py", SHARED): [
        ("self._has(max(self._needed))", "self._has(min(self._needed))"),
        ("self._has(max(self._needed))", "True"),
        ("self._has(max(self._needed))", "self._has(least)"),
        ("self.engine.newest if self._in_flight else", "self.engine.newest if False else"),
        ("if self._in_flight and self.engine.sampled_from", "if self.engine.sampled_from"),
        ("                    self.engine.renew()\n", "                    pass\n"),
        ("                self._needed.remove(least)\n", "                pass\n"),
        ("not self._taken and may()", "not self._taken"),
        ("            self._taken = True\n", "            pass\n"),
        ("if owner is lane]", "if owner is not lane]"),
        ("                self._opened.close()\n", "                pass\n"),
        ("owner.done[number] = completion", "lane.done[number] = completion"),
        ("self.least()", "0"),
        ('version.rpartition(".")[2]', 'version.partition(".")[2][:1]'),
    ],
    ("rollouts/draws.py", DRAWS): [
        ("if n >= self.first and n not in self._used", "if n not in self._used"),
        ("if n >= self.first and n not in self._used", "if n >= self.first"),
        ("while self.first in self._used:", "if self.first in self._used:"),
        ("self._numbers = count(first)", "self._numbers = count(first + 1)"),
    ],
    ("rollouts/transformers.py", "rollouts/test_transformers.py"): [
        (
            "            self._prefixes = PrefixCache(self._cache_bytes)\n        self._packed",
            "            pass\n        self._packed",
        ),
        ("        self._prompts = {}\n        for", "        for"),
        ("is not None and not sequence.renewed:", "is not None:"),
    ],
    ("training/policy.py", "training/test_policy.py"): [
        ("(weight_N > self.tis_cap)", "(weight_N < self.tis_cap)"),
        ('per_token["sampler_kl"] = -gap_N', 'per_token["sampler_kl"] = gap_N'),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
