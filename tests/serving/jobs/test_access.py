"""Whose jobs a client reaches, from where, and with which key."""

import asyncio

import httpx
import pytest

from posttrain.serving.access import Keys
from posttrain.serving.jobs.routes import create_jobs_app
from posttrain.serving.jobs.table import SUCCEEDED
from tests.serving.jobs.serving import Client

SOURCE = "def reward(completion):\n    return 1.0\n"


# Another's jobs


def test_another_owners_job_is_as_if_it_were_not_there(server):
    services, clients, _ = server()
    alice, bob = clients["alice"], clients["bob"]
    job_id = alice.submit()["id"]
    services.table.change(services.table.get("alice", job_id), state=SUCCEEDED)
    missing = "0" * 32
    for at in (job_id, missing):
        answers = [
            bob.get(f"jobs/{at}"),
            *(bob.get(f"jobs/{at}/{part}") for part in ("logs", "metrics", "samples", "result")),
            bob.post(f"jobs/{at}/cancel"),
            bob.delete(f"jobs/{at}"),
            bob.get("jobs", params={"before": at}),
        ]
        assert [answer.status_code for answer in answers] == [404] * 8
        assert {answer.text.replace(at, "ID") for answer in answers} == {'{"error":"there is no job \'ID\'"}'}
    assert bob.get("jobs").json() == {"jobs": [], "next": None}
    assert alice.job(job_id)["state"] == SUCCEEDED


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", f"jobs{part}") for part in ("", "/ID", "/ID/logs", "/ID/metrics", "/ID/samples", "/ID/result")),
        *(("POST", f"jobs{part}") for part in ("", "/ID/cancel")),
        ("DELETE", "jobs/ID"),
    ],
)
def test_every_route_needs_a_key(shared, method, path):
    services, _, url = shared
    path = path.replace("ID", services.table.all()[0].id)
    for key in ("", "tml-", "tml-wrong", "bearer", "tml-\xe9"):
        with httpx.Client(base_url=f"{url}/v1", headers=[(b"X-API-Key", key.encode("latin-1"))]) as stranger:
            assert stranger.request(method, path).status_code == 401
    assert [job.state for job in services.table.all()] == ["queued"]


def test_a_server_whose_last_key_is_removed_refuses_everybody(server):
    services, clients, url = server()
    for name in services.keys.owners():
        Keys(services.keys.path).remove(name)
    with httpx.Client(base_url=f"{url}/v1", headers={"X-API-Key": "tml-any"}) as stranger:
        assert [each.get("jobs").status_code for each in (stranger, *clients.values())] == [401] * 3


def test_the_body_of_a_request_without_a_key_is_dropped(shared):
    """Some of it is read: a connection that is closed with unread data is reset, and the answer lost."""
    services, clients, _ = shared
    sent, read = [], []

    async def receive():
        read.append(2**15)
        if sum(read) > 2**20:
            raise AssertionError("the body is read")
        return {"type": "http.request", "body": bytes(2**15), "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/jobs"}
    scope |= {"raw_path": b"/v1/jobs", "query_string": b"", "root_path": "", "scheme": "http"}
    headers = [(b"host", b"localhost"), (b"content-length", b"30000000")]
    app = create_jobs_app(services)
    asyncio.run(app(scope | {"headers": headers}, receive, send))
    assert sent[0]["status"] == 401 and sum(read) == 2**16
    key = clients["alice"].headers["X-API-Key"].encode()
    with pytest.raises(AssertionError, match="the body is read"):
        asyncio.run(app(scope | {"headers": [*headers, (b"x-api-key", key)]}, receive, send))


def test_keys_are_compared_in_constant_time(shared, monkeypatch):
    from posttrain.serving import access

    services, clients, _ = shared
    compared, equal = [], access.secrets.compare_digest
    monkeypatch.setattr(access.secrets, "compare_digest", lambda a, b: compared.append(1) or equal(a, b))
    assert services.keys.owner(clients["alice"].headers["X-API-Key"]) == "alice" and compared
    assert "tml-" not in (services.table.root.parent / "keys.json").read_text()


def test_a_key_that_is_ended_ends_at_once(server):
    services, clients, _ = server()
    assert clients["alice"].get("jobs").status_code == 200
    services.keys.remove("alice")
    assert clients["alice"].get("jobs").status_code == 401 and clients["bob"].get("jobs").status_code == 200


# From where


def test_pages_of_browsers_and_other_host_names_are_refused(shared):
    _, clients, url = shared
    key = clients["alice"].headers["X-API-Key"]
    assert Client(url, key, Origin="http://evil.example").get("jobs").status_code == 403
    assert Client(url, key, Host="evil.example").get("jobs").status_code == 421
    assert Client(url, key, Host="localhost:9").get("jobs").status_code == 200


def test_slashes_do_not_redirect(shared):
    _, clients, _ = shared
    assert clients["alice"].get("jobs/").status_code == 404
