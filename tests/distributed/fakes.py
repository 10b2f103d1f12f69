"""Pools that ask an object of the test in place of processes of a cluster."""

import os

from posttrain.distributed import pool
from posttrain.distributed.pool import Pool


def placed(monkeypatch, fake):
    """Have every pool call `fake`: its `call`, `collect`, `arrived`, and `replace` where a process is started again."""
    monkeypatch.setattr(pool, "connect", lambda **settings: False)
    monkeypatch.setattr(Pool, "_begin", lambda self: None)
    monkeypatch.setattr(Pool, "running", property(lambda self: self.size))
    monkeypatch.setattr(Pool, "restart", lambda self, place: fake.replace(place))
    monkeypatch.setattr(Pool, "call", lambda self, place, method, *args: fake.call(place, method, *args))
    monkeypatch.setattr(
        Pool, "collect", lambda self, calls, timeout_s=0.0: fake.collect(calls, timeout_s or self.timeout_s)
    )
    monkeypatch.setattr(Pool, "arrived", lambda self, calls, timeout_s: fake.arrived(calls, timeout_s))


def of_each(found, ask):
    """What a function of a process says of each of a pool."""
    return pool.ray.get([handle.__ray_call__.remote(ask) for handle in found._handles])


def pids(found):
    """The processes of a pool; each must answer."""
    return of_each(found, lambda process: os.getpid())
