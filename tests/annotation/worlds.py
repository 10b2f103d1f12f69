"""A store with a project, items and people, as tests need them."""

from posttrain.annotation.store import people, projects
from posttrain.annotation.store.tables import Completion, Item

PASSWORD = "correct horse"


def completions(*texts, model="secret-model"):
    return [Completion(number=number, text=text, model=f"{model}-{number}") for number, text in enumerate(texts)]


def item(name="q", size=3, **more):
    texts = [f"answer {number} to {name}" for number in range(size)]
    plain = {"prompt": [{"role": "user", "content": f"question {name}"}], "completions": completions(*texts)}
    return Item(name=name, **(plain | more))


def add_user(store, name, project=None, role="annotator"):
    """A user, who came by an invitation."""
    with store.write() as connection:
        number = projects.find(connection, project).id if project else None
        secret = people.invite(connection, role, project=number)
        return people.accept(connection, secret, name, people.sealed(PASSWORD))


def add_project(store, name="helpful", items=4, **options):
    """A project; `items` are new ones, or how many plain ones."""
    with store.write() as connection:
        project = projects.create(connection, name, **options)
        new = [item(f"q{n}") for n in range(items)] if isinstance(items, int) else items
        projects.add_items(connection, project, new)
        return project
