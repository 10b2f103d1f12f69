import asyncio
import contextlib
import json
import math
import socket
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import apart, from_function, parse_rewards, remote
from posttrain.rewards.remote import ATTEMPTS, BATCH, Remote, check_address, is_public
from posttrain.types import Episode, Message, Task

HERE = [(socket.AF_INET, "127.0.0.1")]


def episode(said="2", number=0):
    prompt = (Message("user", "1+1?"),)
    task = Task(prompt, answer="2", metadata={"level": 3}, id=f"train-{number}")
    return Episode(task, (*prompt, Message("assistant", said)))


class Answers:
    """A server that answers requests in order as it is told, the last answer again and again."""

    def __init__(self, *answers):
        self.asked, self.waiting = [], deque(answers)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, dict(self.headers), body))
                answer = outer.waiting.popleft() if len(outer.waiting) > 1 else outer.waiting[0]
                answer(self, body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/score"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def sends(body, status=200, **headers):
    """An answer: a function of the request's body, or bytes."""

    def answer(handler, asked):
        raw = body if isinstance(body, bytes) else json.dumps(body(asked)).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


lengths = sends(lambda body: {"scores": [len(said) for said in body["completions"]]})


def scores(reward, *episodes):
    return [score.value for (score,) in asyncio.run(from_function(reward, "remote").score(apart(episodes)))]


def test_a_batch_is_sent_and_its_scores_are_the_rewards():
    with Answers(lengths) as server:
        assert scores(Remote(server.url), episode("four"), episode("2", 1)) == [4.0, 1.0]
    path, headers, body = server.asked[0]
    assert path == "/score" and headers["Content-Type"] == "application/json"
    assert body["prompts"] == [[{"role": "user", "content": "1+1?"}]] * 2
    assert body["completions"] == ["four", "2"]
    assert body["tasks"][1] == {"id": "train-1", "answer": "2", "metadata": {"level": 3}}


def test_large_batches_are_sent_in_parts_in_order():
    said = ["x" * (number % 7) for number in range(BATCH + 3)]
    with Answers(lengths) as server:
        assert scores(Remote(server.url), *map(episode, said)) == [len(text) for text in said]
    assert [len(body["completions"]) for _, _, body in server.asked] == [BATCH, 3]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_pass_is_tried_again(status):
    with Answers(sends(b"", status), sends(b"", status), lengths) as server:
        assert scores(Remote(server.url, pause_s=0.001), episode()) == [1.0]
    assert len(server.asked) == 3


def test_pauses_grow(monkeypatch):
    slept = []
    monkeypatch.setattr(remote.time, "sleep", slept.append)
    monkeypatch.setattr(remote.random, "uniform", lambda low, high: 1.0)
    with Answers(sends(b"", 503)) as server, pytest.raises(RewardError, match=r"no answer in 4 attempts.*HTTP 503"):
        scores(Remote(server.url), episode())
    assert slept == [1.0, 2.0, 4.0] and len(server.asked) == ATTEMPTS


def test_a_connection_that_is_cut_is_tried_again():
    def cut(handler, body):
        handler.connection.shutdown(socket.SHUT_RDWR)

    with Answers(cut, lengths) as server:
        assert scores(Remote(server.url, pause_s=0.001), episode()) == [1.0]


def test_an_answer_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT_S", 1.0)

    def drips(handler, body):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    began = time.monotonic()
    with Answers(drips) as server, pytest.raises(RewardError, match=r"no whole answer within 1 s"):
        scores(Remote(server.url, pause_s=0.001), episode())
    assert len(server.asked) == ATTEMPTS and time.monotonic() - began < 10 * ATTEMPTS


@pytest.fixture
def drips():
    """Begin a server that says the bytes that it is given, then one byte now and then, and never comes to an end."""
    opened = list[socket.socket]()

    def server(said):
        place = socket.create_server(("127.0.0.1", 0))
        opened.append(place)

        def answer(connection):
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(said)
                for _ in range(30):
                    connection.sendall(b"1")
                    time.sleep(0.1)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=place.accept()[:1], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{place.getsockname()[1]}/score"

    yield server
    for place in opened:
        place.shutdown(socket.SHUT_RDWR)
        place.close()


@pytest.mark.parametrize(
    "said",
    [b"200 ", b"200 OK\r\nX-More: ", b"200 OK\r\n\r\n", b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ids=["status", "head", "body", "chunk"],
)
def test_the_time_limit_is_that_of_the_whole_answer_wherever_it_drips(said, drips, monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.2)
    with pytest.raises(RewardError, match=r"no answer in 4 attempts; the last one: no whole answer within 0.2 s"):
        scores(Remote(drips(b"HTTP/1.1 " + said), pause_s=0.001), episode())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"scores": [NaN]}', "returned nan on task"),
        (b'{"scores": [1e999]}', "returned inf on task"),
        (b'{"scores": [1' + b"0" * 400 + b"]}", "returned 10.* expected a finite number"),
        (b'{"scores": [true]}', "gave True"),
        (b'{"scores": [null]}', "gave None"),
        (b'{"scores": ["1"]}', "gave '1'"),
        (b'{"scores": [1, 2]}', "2 scores for 1 completions"),
        (b'{"scores": []}', "0 scores for 1 completions"),
        (b'{"scores": 1}', "must answer"),
        (b"[1]", "must answer"),
        (b"<html>", "not answer with JSON"),
        (b"[" * 50_000, "not answer with JSON"),
    ],
)
def test_what_is_no_score_is_an_error_and_no_zero(body, says):
    with Answers(sends(body)) as server, pytest.raises(RewardError, match=says):
        scores(Remote(server.url), episode())
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [201, 301, 302, 307, 308, 400, 401, 404])
def test_other_answers_are_errors_and_redirects_are_not_followed(status):
    with (
        Answers(lengths) as other,
        Answers(sends(b"", status, Location=other.url)) as server,
        pytest.raises(RewardError, match=f"HTTP {status}"),
    ):
        scores(Remote(server.url), episode())
    assert len(server.asked) == 1 and not other.asked


def test_an_answer_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(remote, "ANSWER_BYTES", 1000)
    fits = b'{"scores": [1]' + b" " * 900 + b"}"
    with Answers(sends(fits)) as server:
        assert scores(Remote(server.url), episode()) == [1.0]
    with Answers(sends(b" " * 2000)) as server, pytest.raises(RewardError, match="more than 1064 bytes"):
        scores(Remote(server.url), episode())


def test_an_answer_that_is_compressed_is_refused():
    with Answers(sends(b"x", Content_Encoding="gzip")) as server, pytest.raises(RewardError, match="compressed"):
        scores(Remote(server.url), episode())
    assert server.asked[0][1]["Accept-Encoding"] == "identity"


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Answers(lengths) as server:
        assert scores(Remote(server.url), episode()) == [1.0]


PRIVATE = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("ff02::1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE[:8])
def test_nothing_is_asked_at_an_address_that_is_not_public(address, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: pytest.fail("a connection was made"))
    reward = Remote("https://reward.example/", public=True, resolve=lambda host, port: [(2, address)])
    with pytest.raises(RewardError, match="not a public address"):
        scores(reward, episode())


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: pytest.fail("a connection was made"))
    found = [(2, "8.8.8.8"), (2, "127.0.0.1")]
    with pytest.raises(RewardError, match=r"127.0.0.1, which is not a public address"):
        scores(Remote("https://reward.example/", public=True, resolve=lambda host, port: found), episode())


def test_the_connection_is_made_to_the_address_that_was_checked(monkeypatch):
    """A name that is public when it is checked and private when it is used again."""
    answers, asked, connected = deque(["8.8.8.8", "127.0.0.1"]), [], []

    def rebinds(host, port):
        asked.append(host)
        return [(2, answers.popleft() if len(answers) > 1 else answers[0])]

    def connect(address, timeout):
        connected.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: pytest.fail("resolved again"))
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    with pytest.raises(RewardError, match="no network here"):
        scores(Remote("https://reward.example/", public=True, resolve=rebinds), episode())
    assert (asked, connected) == (["reward.example"], [("8.8.8.8", 443)])


def test_by_https_the_certificate_must_be_of_the_host_that_was_named(monkeypatch):
    """Checks of certificates are Python's; what is ours is which name they are checked for."""
    contexts = []

    class Context:
        def wrap_socket(self, sock, server_hostname):
            contexts.append((type(made), server_hostname))
            raise OSError("no certificate")

    made = remote.ssl.create_default_context()
    assert made.check_hostname and made.verify_mode == remote.ssl.CERT_REQUIRED
    monkeypatch.setattr(remote.ssl, "create_default_context", Context)
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: socket.socketpair()[0])
    with pytest.raises(RewardError, match="no certificate"):
        scores(
            Remote("https://reward.example/", pause_s=0.001, resolve=lambda host, port: [(2, "8.8.8.8")]),
            episode(),
        )
    assert contexts == [(remote.ssl.SSLContext, "reward.example")] * ATTEMPTS


def test_each_attempt_is_checked(monkeypatch):
    answers = deque(["8.8.8.8", "127.0.0.1"])

    def connect(address, timeout):
        assert address[0] == "8.8.8.8"
        raise OSError("no network here")

    monkeypatch.setattr(socket, "create_connection", connect)
    reward = Remote(
        "https://reward.example/", public=True, pause_s=0.001, resolve=lambda host, port: [(2, answers.popleft())]
    )
    with pytest.raises(RewardError, match=r"127.0.0.1, which is not a public address"):
        scores(reward, episode())


def test_the_host_of_the_address_is_named_in_the_request():
    with Answers(lengths) as server:
        port = server.server.server_port
        reward = Remote(f"http://reward.example:{port}/score", resolve=lambda host, port: HERE)
        assert scores(reward, episode()) == [1.0]
        assert server.asked[0][1]["Host"] == f"reward.example:{port}"


def test_a_host_that_does_not_resolve_is_tried_again_and_then_an_error():
    asked = []

    def fails(host, port):
        asked.append(host)
        raise socket.gaierror("unknown")

    with pytest.raises(RewardError, match="gaierror: unknown"):
        scores(Remote("https://reward.example/", pause_s=0.001, resolve=fails), episode())
    assert len(asked) == ATTEMPTS


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://a/", "file:///etc/passwd", "https://", "https://user@a/", "https://u:p@a/", "https://a/?b=1"),
        *("https://a/#b", "https://a/ b", "https://a/\r\nX: 1", "https://a/'", "https://a:99999/", "https://a:0/"),
        *("https://a/=1", "//a/", "https://a\\b/", "https://a:x/", "https://[::1/", "https://é/"),
    ],
)
def test_what_is_no_plain_address_is_refused(url):
    with pytest.raises(UserError, match="the address of a reward is"):
        check_address(url)


def test_rewards_by_address_have_weights_among_others():
    found = parse_rewards("https://a.example/x/y=0.5 tags=0.1 numbers")
    assert found.weights == {"remote": 0.5, "tags": 0.1, "numbers": 1.0}
    plain, public = (parse_rewards(word).parts[0] for word in ("http://a:1/b.py:c", "public:https://a/b"))
    assert (plain[0].function, plain[1]) == (Remote("http://a:1/b.py:c"), 1.0)
    assert (public[0].function, public[1]) == (Remote("https://a/b", public=True), 1.0)
    assert parse_rewards("https://a.example/x").outcome == ""  # 1 need not be the best


def test_scores_of_any_range_are_passed_on():
    with Answers(sends(lambda body: {"scores": [-3, 1e9]})) as server:
        assert scores(Remote(server.url), episode(), episode()) == [-3.0, 1e9]
    assert from_function(Remote(server.url)).bounds == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("fec0::1", False),  # site-local
        ("feff::1", False),
        ("64:ff9b:1::8.8.8.8", False),  # local-use NAT64
        ("64:ff9b::127.0.0.1", False),
        ("64:ff9b::8.8.8.8", True),
        ("::127.0.0.1", False),  # IPv4-compatible
        ("::10.0.0.1", False),
        ("::8.8.8.8", True),
        ("::ffff:0:127.0.0.1", False),  # IPv4-translated
        ("::ffff:0:169.254.169.254", False),
        ("::ffff:127.0.0.1", False),  # IPv4-mapped
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("::1", False),
        ("::", False),
        ("2001:4860:4860::8888", True),
    ],
)
def test_an_address_is_as_public_as_the_one_inside(address, public):
    assert is_public(address) is public
