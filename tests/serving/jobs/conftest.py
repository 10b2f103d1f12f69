import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from tests.recipes.folders import model_folder
from tests.serving.jobs.serving import Client, opened, served


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny model with a tokenizer."""
    return model_folder(tmp_path_factory.mktemp("jobs"), context=256)


@pytest.fixture
def server(tmp_path, tiny):
    """Starts servers on which nothing runs: their parts, and clients by name."""
    stack = []

    def start(**settings):
        services, secrets = opened(tmp_path / "root", tiny, **{"at_once": 0, **settings})
        manager = served(services)
        url = manager.__enter__()
        clients = {name: Client(url, secret) for name, secret in secrets.items()}
        stack.append((manager, clients))
        return services, clients, url

    yield start
    for manager, clients in stack:
        for client in clients.values():
            client.close()  # the end of a server waits for its connections
        manager.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny):
    """One server for tests that change nothing; alice has a job that waits."""
    services, secrets = opened(tmp_path_factory.mktemp("shared") / "root", tiny, at_once=0)
    with served(services) as url, Client(url, secrets["alice"]) as alice, Client(url, secrets["bob"]) as bob:
        alice.submit()
        yield services, {"alice": alice, "bob": bob}, url
