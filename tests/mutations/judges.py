"""Faults of judges: what they are asked, how they are read, what they may cost, and what is kept."""

from tests.mutations import Mutation

JUDGES, CONTEXT = "rewards/judges", "rewards/test_context.py"

_FAULTS = {
    ("rewards/judges/verdict.py", JUDGES): [
        ("line = lines[-1].strip()", "line = lines[0].strip()"),
        ("_LINE.fullmatch(line)", "_LINE.search(line)"),
        ("_LINE.fullmatch(line)", "_LINE.match(line)"),
        ("return number if scale[0] <= number <= scale[1] else None", "return number"),
        ("scale[0] <= number <= scale[1]", "scale[0] < number < scale[1]"),
        (" or (found[2] and float(found[2]) != scale[1])", ""),
        ("[+-]?[0-9]+", r"[+-]?\\d+"),
        ("    re.IGNORECASE,\n", ""),
    ],
    ("rewards/judges/prompt.py", JUDGES): [
        (
            "return _FIELD.sub(",
            "return _FIELD.sub(lambda found: values[found[1]], self.text.format(**values)) and _FIELD.sub(",
        ),
        ('        if not self.needs("answer"):\n', "        if False:\n"),
        ("if len(scales) != 1 or not", "if not"),
        ("float(scales[0][0]) < float(scales[0][1])", "float(scales[0][0]) <= float(scales[0][1])"),
        ("cutoff=0.75", "cutoff=1.0"),
        ('.encode("utf-8", "replace").decode("utf-8")', ""),
        ("for m in messages[:last])", "for m in messages)"),
        ("]\\n{m.text}", "]\\n{m.content}"),
        ("[{boundary} {m.role}]", "[{m.role}]"),
    ],
    ("rewards/judges/pointwise.py", JUDGES): [
        ("Score((found - low) / (high - low)", "Score(found / high"),
        ("seed=seed_of(place, attempt)", "seed=place"),
        ("seed_of(self.seed, ", "seed_of("),
        ("self.name, episode.task.id, repr(said)", "self.name, repr(said)"),
        ("episode.task.id, repr(said))", "episode.task.id)"),
        ('"judge", self.name, episode', '"judge", episode'),
        ("if reply.stop_reason is StopReason.STOP else None", ""),
        ("if reply.stop_reason is StopReason.CONTEXT and not reply.text:", "if False:"),
        ("replace(self.sampling, temperature=1.0) if again else self.sampling", "self.sampling"),
        ("attempt > 0 and not self.sampling.temperature", "attempt > 0"),
        ('return Score.not_applicable(\n            f"none', 'return Score(\n            0.0, explanation=f"none'),
        ("range(min(self.at_once, len(episodes)))", "range(len(episodes))"),
        ("                if failed:\n                    return\n", ""),
        ("await asyncio.wait(waiting, timeout=GRACE_S)", "await asyncio.wait(waiting)"),
        ("            if waiting:\n                await asyncio.wait(waiting, timeout=GRACE_S)\n", ""),
        ("                worker.cancel()\n", "                pass\n"),
        ("        if failed:\n            raise failed[0]\n", ""),
        ("with scoring(self.name, episode):", "if True:"),
        ('if self.prompt.needs("reference") and', 'if self.prompt.needs("question") and'),
        ("{seed_of(place, 'boundary'):016x}", "{self.seed:016x}"),
    ],
    ("rewards/combine.py", JUDGES): [
        ("if verifiers or asked or any", "if verifiers or any"),
        ('any(role_of(reward) == "judge" for reward, _ in self.parts)', "False"),
        ("return judges[name], _weight(word, weight if equals else None)", "return judges[name], 1.0"),
    ],
    ("rewards/combine.py", CONTEXT): [
        ("(reward.reward if isinstance(reward, Named) else reward for", "(reward for"),
        ("function.context[:] = [context]", "function.context.append(context)"),
    ],
    ("rewards/custom.py", CONTEXT): [
        ('_CONTEXT = "reward_context"', '_CONTEXT = "context"'),
        ("return _CONTEXT in (*self.parameters, *self.optional)", "return _CONTEXT in self.parameters"),
        ('not in (*_LOGS, _CONTEXT, "group"):', 'not in (*_LOGS, "group"):'),
        ("        return self.asks\n", "        return False\n"),
    ],
    ("rewards/context.py", CONTEXT): [("return seed_of(self.seed, *parts)", "return seed_of(*parts)")],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
