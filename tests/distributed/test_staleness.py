"""Steps that are sampled ahead: on a cluster."""

import pytest

pytest.importorskip("ray")

from dataclasses import replace

from posttrain.runs import read_run
from posttrain.setup.cluster_options import AsyncOptions
from tests.distributed.test_recipes import curve, folder, grpo, same  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AHEAD = AsyncOptions(trainers=1, samplers=2, max_staleness=2)


@pytest.mark.parametrize("in_flight", [False, True])
def test_no_token_is_older_than_allowed(in_flight, folder, tmp_path, cluster):  # noqa: F811
    options = replace(AHEAD, in_flight_updates=in_flight)
    run = grpo(folder, steps=8)(options, output=tmp_path / "run", quiet=True).run
    rows = read_run(run).metrics
    print([(row["staleness/mean"], row["staleness/max"], row["seconds/rollout"]) for row in rows])
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
    assert max(row["staleness/max"] for row in rows) >= 1
