"""What the processes of a group did: spans of the timeline, busy shares, tokens per second; numbers by hand."""

import pytest

from posttrain.distributed import pool as module
from posttrain.distributed.pool import Ledger
from posttrain.runs.run import Span


class Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def time(self):
        return 5000.0 + self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_busy_time_and_tokens_are_counted_once(clock):
    ledger = Ledger("sampler", 2)
    clock.now += 4.0
    ledger.note("sampling", [0], 1.0, 20)
    ledger.note("sampling", [1], 2.0, 70)
    ledger.note("weights", [0, 1], 0.5, busy=False)
    shares, speeds = ledger.rates()
    assert shares == {"cluster/busy/sampler0": 0.25, "cluster/busy/sampler1": 0.5}
    each = "cluster/tokens_per_second/sampler"
    assert speeds == {"cluster/sampler_tokens_per_second": 30.0, f"{each}0": 20.0, f"{each}1": 35.0}
    clock.now += 10.0
    ledger.note("sampling", [1], 2.0, 10)
    shares, speeds = ledger.rates()
    assert shares == {"cluster/busy/sampler0": 0.0, "cluster/busy/sampler1": 0.2}
    assert speeds == {"cluster/sampler_tokens_per_second": 5.0, f"{each}0": 0.0, f"{each}1": 5.0}


def test_a_share_is_at_most_one_and_no_time_is_no_error(clock):
    ledger = Ledger("scorer", 1)
    assert ledger.rates()[0] == {"cluster/busy/scorer0": 0.0}
    clock.now += 1.0
    ledger.note("scoring", [0], 3.0)  # it began before the last call
    assert ledger.rates()[0] == {"cluster/busy/scorer0": 1.0}


def test_spans_end_when_they_are_noted_and_are_returned_once(clock):
    ledger = Ledger("scorer", 2)
    clock.now = 104.0
    ledger.note("scoring", [1, 0], 3.0)
    assert ledger.spans() == [Span(f"scorer {n}", "scoring", 5101.0, 5104.0) for n in (1, 0)]
    assert ledger.spans() == []


def test_slices_of_one_work_that_follow_each_other_are_one_span(clock):
    ledger = Ledger("scorer", 1)
    for now, work in ((104.0, "scoring"), (105.03, "scoring"), (106.03, "weights"), (108.0, "weights")):
        clock.now = now
        ledger.note(work, [0], 1.0)
    assert [(span.work, span.began, span.ended) for span in ledger.spans()] == [
        ("scoring", pytest.approx(5103.0), pytest.approx(5105.03)),
        ("weights", pytest.approx(5105.03), pytest.approx(5106.03)),
        ("weights", pytest.approx(5107.0), pytest.approx(5108.0)),
    ]
