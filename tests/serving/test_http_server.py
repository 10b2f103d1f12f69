"""Slow clients, with raw sockets on loopback: what they hold up is given back, and the log has no traceback."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra annotate")

from posttrain.annotation.app import create_app, security
from posttrain.annotation.store.database import open_store
from posttrain.errors import UserError
from posttrain.serving.http_server import bound, http_server

SHORT = 0.4  # seconds


def tinker_server(port):
    pytest.importorskip("tinker", reason="needs the extra server")
    from posttrain.recipes.server import Server, run

    run(Server(port=port))


def annotation(port):
    from posttrain.recipes.annotate.serve import Serve, run

    run(Serve(store="a.db", port=port))


def jobs(port):
    pytest.importorskip("filelock", reason="needs the extra server")
    from posttrain.recipes.jobs import Jobs, run

    os.mkdir("m")
    Path("m/config.json").touch()
    run(Jobs(add_key="alice"))
    run(Jobs(port=port, models="m=m"))


HEAD = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@contextlib.contextmanager
def serving(app, monkeypatch):
    """The address of a server with the settings of all servers, but shorter times."""
    for name in ("HEAD_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(f"posttrain.serving.http_server.{name}", SHORT, raising=False)
    monkeypatch.setattr(security, "BODY_SECONDS", SHORT, raising=False)
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_server(app, listener)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname(), server
    server.should_exit = True
    server.force_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def address(tmp_path, monkeypatch, caplog):
    store = open_store(str(tmp_path / "annotation.db"))
    with caplog.at_level(logging.WARNING), serving(create_app(store), monkeypatch) as (where, _):
        yield where
    store.close()
    told = [record for when in ("setup", "call", "teardown") for record in caplog.get_records(when)]
    assert not [record.getMessage() for record in told if record.exc_info]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_is_taken_before_a_server_says_where_it_is(host):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"another server listens on port {port}; end it, or pass another `port`"):
            bound(host, port)
    with bound(host, port) as place, pytest.raises(ConnectionRefusedError):  # it does not listen before it can answer
        assert place.getsockname()[1] == port
        connect(("127.0.0.1", port))


def test_two_servers_that_start_at_the_same_time_do_not_take_one_port():
    with bound("127.0.0.1", free_port()) as first, pytest.raises(UserError, match="another server listens on port"):
        bound("127.0.0.1", first.getsockname()[1])


def test_a_port_with_old_connections_is_taken_at_once():
    port = free_port()

    async def serve(sockets):
        (place,) = sockets
        place.listen()
        with place, socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = place.accept()
            served.close()  # the side that closes first waits
            assert client.recv(1) == b""

    for _ in range(2):
        server = http_server(None, bound("127.0.0.1", port))
        server.serve = serve
        server.run()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", r"\[Errno"), ("nosuch.invalid", r"\[Errno")])
def test_an_address_that_is_not_this_machines_is_named(host, why):
    with pytest.raises(UserError, match=rf"`host` {host} `port` 8000 cannot be listened on: {why}"):
        bound(host, 8000)


@pytest.mark.parametrize("run", [tinker_server, annotation, jobs])
def test_a_command_whose_port_is_taken_says_nothing_of_serving(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    taken = pytest.raises(UserError, match="another server listens on port")
    with socket.create_server(("127.0.0.1", 0)) as other, taken:
        run(other.getsockname()[1])
    assert capsys.readouterr().err == "" and not os.path.exists("posttrain-server") and not os.path.exists("a.db")


def connect(address):
    found = socket.create_connection(address, timeout=60)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def rest(line):
    """What comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := line.recv(65536):
            found += piece
    return found


def dribble(line, data):
    """Send a byte now and then, as long as the server takes it; what it answers."""
    line.settimeout(0.05)
    found = b""
    for byte in data:
        try:
            line.sendall(bytes([byte]))
            if not (piece := line.recv(65536)):
                return found
            found += piece
        except TimeoutError:
            continue
        except OSError:
            return found
    raise AssertionError("the server took it all")


def test_a_connection_on_which_nothing_comes_is_closed(address):
    began = time.monotonic()
    assert rest(connect(address)) == b"" and time.monotonic() - began < 5


def test_a_head_that_comes_byte_by_byte_is_a_timeout(address):
    assert dribble(connect(address), HEAD + b"X: " + b"x" * 1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"name="])
def test_a_body_that_does_not_come_is_a_timeout(address, sent):
    line = connect(address)
    line.sendall(HEAD + b"Content-Length: 100\r\n\r\n" + sent)
    head, _, body = rest(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and body == b"the request took too long"
    assert b"x-frame-options: DENY" in head


def test_a_body_that_comes_byte_by_byte_is_a_timeout(address):
    line = connect(address)
    line.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
    assert dribble(line, b"x" * 999).startswith(b"HTTP/1.1 408 ")


def test_who_goes_in_the_middle_of_a_body_leaves_no_traceback(address):
    for _ in range(3):
        line = connect(address)
        line.sendall(HEAD + b"Content-Length: 100\r\n\r\nname=")
        time.sleep(0.05)
        line.close()
    time.sleep(0.2)  # the fixture reads the log and fails where it has a traceback
    line = connect(address)
    line.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert rest(line).startswith(b"HTTP/1.1 200 ")


def test_a_second_request_on_a_connection_has_to_come_in_time_too(address):
    line = connect(address)
    line.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
    line.settimeout(5)
    assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in dribble(line, HEAD + b"x" * 1000)


def test_others_are_served_while_many_hang(address):
    hanging = []
    for n in range(60):
        hanging.append(line := connect(address))
        line.sendall(HEAD if n % 2 else HEAD + b"Content-Length: 100\r\n\r\n")
    line = connect(address)
    line.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert rest(line).startswith(b"HTTP/1.1 200 ")
    assert all(rest(one).startswith(b"HTTP/1.1 408 ") for one in hanging)


def test_work_that_takes_longer_than_a_head_may_is_not_cut_off_and_who_does_not_read_is(monkeypatch):
    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        await asyncio.sleep(3 * SHORT)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/large" else 1):
            await send({"type": "http.response.body", "body": b"x" * 1024**2, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with serving(app, monkeypatch) as (where, server):
        line = connect(where)
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len(rest(line)) > 1024**2
        idle = connect(where)
        idle.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until = time.monotonic() + 8
        while not server.server_state.connections and time.monotonic() < until:
            time.sleep(0.01)
        while server.server_state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.server_state.connections
        assert len(rest(idle)) < 64 * 1024**2
