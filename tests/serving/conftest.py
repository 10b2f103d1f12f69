import os

import pytest

from tests.recipes.folders import model_folder

os.environ.setdefault("TINKER_TELEMETRY", "0")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny model with a tokenizer."""
    return model_folder(tmp_path_factory.mktemp("served"), context=64)


@pytest.fixture(scope="session")
def base(folder):
    """It, loaded."""
    from tests.serving.serving import base_of

    return base_of(folder)
