"""A visitor's browser without a screen: forms are read from pages, as a person would send them."""

import re

from starlette.testclient import TestClient

from posttrain.annotation.app import create_app
from tests.annotation.worlds import PASSWORD, add_user

JSON = {"accept": "application/json"}


class Browser:
    """One person's browser."""

    def __init__(self, app, name=""):
        self.client = TestClient(app, raise_server_exceptions=False)
        if name:
            self.post("/login", name=name, password=PASSWORD)

    def get(self, path, **options):
        return self.client.get(path, **options)

    def fields(self, path):
        """The hidden fields of a page's form."""
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self.get(path).text))

    @property
    def csrf(self):
        return self.fields("/")["csrf"]

    def post(self, path, headers=None, **fields):
        return self.client.post(path, data=fields, headers=headers)


def office(store, *names, project="helpful"):
    """The application, and a browser of each of these annotators, logged in."""
    app = create_app(store)
    for name in names:
        add_user(store, name, project)
    return app, [Browser(app, name) for name in names]
