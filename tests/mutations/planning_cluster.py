"""Faults of the cost model and the simulation of clusters: a factor, a bound of the age, a clock that stands still."""

from tests.mutations import Mutation

_MODEL = "planning/cluster/test_coefficients.py"
_CLOCK = "planning/cluster/test_simulation.py"
_GPU = "planning/cluster/test_gpus.py"
_SPLITS = "planning/cluster/test_splits.py"
_WORK = "planning/cluster/test_workload.py"

MUTATIONS = [
    *(
        Mutation("planning/cluster/coefficients.py", old, new, _MODEL)
        for old, new in [
            ("sequences * steps * steps / 2", "sequences * steps * steps"),
            ("return 2 * seconds / (rate + root)", "return seconds / (rate + root)"),
            ("2 * curve * seconds", "curve * seconds"),
            ("math.ceil(rows / self.trainers) * one", "rows / self.trainers * one"),
            ("math.ceil(tokens / microbatch_tokens)", "tokens // microbatch_tokens"),
            ("max(compute, self.row) if self.hidden", "compute + self.row if self.hidden"),
        ]
    ),
    *(
        Mutation("planning/cluster/simulation.py", old, new, _CLOCK)
        for old, new in [
            ("(self.version + self.staleness + 1) * size", "(self.version + self.staleness + 2) * size"),
            ("(self.version + self.staleness + 1) * size", "(self.version + 1) * size"),
            ("            if group.version < 0:\n", "            if True:\n"),
            ("group.version, group.started = self.version, now", "group.version, group.started = 0, now"),
            ("now + self.work.scoring_seconds", "now"),
            ("or self.free > now", ""),
            ("self.ready.get(batch, math.inf) > now or ", ""),
            ("self.free = synced = updated + self.costs.sync", "self.free = synced = updated"),
            ("        self.version += 1\n", ""),
            ("self.stalled = max(self.stalled, now) + sync + again", "self.stalled = max(self.stalled, now) + again"),
            ("self.stalled = max(self.stalled, now) + sync + again", "self.stalled = now + sync + again"),
            ("again = self.cached * self.decoding.prompt", "again = 0.0"),
            ("self.last = -1  #", "pass  #"),
            ("self.cached -= self.prompt_tokens + length", "self.cached -= length"),
            ("self.cached += steps * len(self.running)", "self.cached += steps"),
            ("self.cached += self.prompt_tokens\n", "pass\n"),
            ("share = min(share, self.costs.decoding.slots)", "pass"),
            ("            if not group.left:\n", "            if True:\n"),
            ("if event != self.samplers[place].events:", "if False:"),
            ("len(self.running)\n        self.busy += seconds\n", "len(self.running)\n"),
            ("+ seconds\n        self.busy += seconds\n", "+ seconds\n"),
        ]
    ),
    *(
        Mutation("planning/cluster/gpus.py", old, new, _GPU)
        for old, new in [
            ("factor = 8 + 2 *", "factor = 6 + 2 *"),
            ("2 * shape.parameters / flops + reduced", "shape.parameters / flops + reduced"),
            (
                "4 * shape.layers * WEIGHT * shape.hidden * (gpus - 1)",
                "4 * shape.layers * WEIGHT * shape.hidden * gpus",
            ),
            ("self.gpu.nvlink if gpus <= NODE else between", "self.gpu.nvlink"),
            ("NODE * self.gpu.network)", "self.gpu.network)"),
            ("(2 * WEIGHT + GRADIENT) * shape.parameters", "3 * WEIGHT * shape.parameters"),
            ("OPTIMIZER * shape.parameters / trainers", "OPTIMIZER * shape.parameters"),
            ("min(samplers, FANOUT) * self.shape", "samplers * self.shape"),
            ("(levels - 1) * FANOUT * largest", "levels * FANOUT * largest"),
            ("reached += FANOUT**levels", "reached += FANOUT"),
            ("beside = self.held() / gpus", "beside = 0.0"),
            ("self.decoding(of_sampler, beside)", "self.decoding(of_sampler)"),
            ("cached=cache_bytes_per_token(shape, WEIGHT) / moved", "cached=0.0"),
            ("* self.reached.latency * math.log2(gpus)", "* self.reached.latency"),
            ("self.held() / trainers", "self.held()"),
            ("2 * self.shape.active / self.shape.layers", "self.shape.active / self.shape.layers"),
            ("self.trainer(count) <= self.usable), 0)", "self.trainer(count) <= 2 * self.usable), 0)"),
            ("range(2 * NODE, most + 1, NODE)", "range(NODE + 1, most + 1)"),
            ("gpus * (self.usable - beside)", "gpus * self.usable - beside"),
            (">= self.work.longest), 0)", "> 0), 0)"),
            ("/ self.work.resident()", "/ self.work.longest"),
        ]
    ),
    *(
        Mutation("planning/cluster/splits.py", old, new, _SPLITS)
        for old, new in [
            ("self.gpus / 3600 * 1e6", "self.trainers / 3600 * 1e6"),
            ("return self.trained / self.step", "return self.trained / self.update"),
            ("return max(train, sample)", "return train + sample"),
            ("max(sample, decoding.seconds(max(map(max, groups)), 1, work.prompt_tokens))", "sample"),
            ("n for n in near | {self.fewest_trainers}", "n for n in near"),
            ("if self.fewest_trainers <= n <= most", "if n <= most"),
            ("(self.gpus - trainers) // size", "self.gpus // size"),
            ("before, *kept = found.updates[first - 1 :]", "before, *kept = found.updates"),
            ("(kept[-1].synced - before.synced)", "kept[-1].synced"),
            ("sorted(found, key=lambda split: split.step)", "found"),
            ("            waited -= found.sampling + work.scoring_seconds\n", "            pass\n"),
            ("computed / (self.gpus * found.step)", "computed / found.step"),
            ("self.cluster.cache_tokens(size, beside) >= longest", "True"),
        ]
    ),
    *(
        Mutation("planning/cluster/workload.py", old, new, _WORK)
        for old, new in [
            ("math.log(self.mean_tokens) - self.spread**2 / 2", "math.log(self.mean_tokens)"),
            ("math.exp(self.spread**2)", "math.exp(self.spread**2 / 2)"),
            ("return self.prompt_tokens + biased / 2", "return self.prompt_tokens + biased"),
            ("+ prompt_tokens * len(groups)", ""),
            ("2 * prompt_tokens * n", "prompt_tokens * n"),
            ("min(self.max_tokens, length)", "length"),
        ]
    ),
    *(
        Mutation("planning/cluster/result.py", old, new, "recipes/test_plan_cluster.py")
        for old, new in [
            ("split.gpu_hours() * (self.config.price_per_gpu_hour or 1.0)", "split.gpu_hours()"),
            ("[split for split in self.splits if split.mode != COLOCATED]", "list(self.splits)"),
            ("weights > self.cluster.usable", "weights > self.cluster.usable / 3"),
            ("ratio = fastest.step / self.best.step", "ratio = self.best.step / fastest.step"),
        ]
    ),
]
