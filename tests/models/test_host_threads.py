"""What is loaded for another thread leaves no thread behind."""

import threading

import pytest

from posttrain.models.host_memory import in_temporary_thread


def test_work_is_done_in_a_thread_that_has_ended():
    thread = in_temporary_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_its_error_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_temporary_thread(lambda: 1 / 0)
