"""The thread that computes goes on, whatever fails."""

import threading
from types import SimpleNamespace

from posttrain.serving.services import Worker


def failing():
    raise OSError("no space left")


def test_a_task_that_fails_is_reported_and_the_next_one_runs():
    said, done = [], threading.Event()
    worker = Worker(SimpleNamespace(busy=False), said.append)
    worker.start()
    for task in (failing, done.set):
        worker.submit(task)
    assert done.wait(10)
    worker.close()
    (text,) = said
    assert text.startswith("an error of the server itself: OSError: no space left (") and "test_worker.py" in text


def test_so_is_a_step_of_sampling():
    said, done = [], threading.Event()
    sampling = SimpleNamespace(busy=True)

    def step():
        if not said:
            failing()
        sampling.busy = False
        done.set()

    sampling.step = step
    worker = Worker(sampling, said.append)
    worker.start()
    assert done.wait(10)
    worker.close()
    assert len(said) == 1
