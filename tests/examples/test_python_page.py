"""docs/python.md: its blocks run one after another, as a reader types them, and do what the page says of them."""

import linecache
import re
from pathlib import Path

import pytest

import posttrain as pt
from tests.recipes.folders import model_folder

PAGE = Path(__file__).parents[2] / "docs/python.md"
TITLE, CODE = re.compile(r"^## (.*)$", re.MULTILINE), re.compile(r"```python\n(.*?)```", re.DOTALL)


def sections():
    """The code of each section that has some, by its title."""
    parts = TITLE.split(PAGE.read_text())
    found = {title: "\n".join(CODE.findall(text)) for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    return {title: code for title, code in found.items() if code}


def test_the_page_runs(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("page")
    monkeypatch.chdir(home)
    names = {"__name__": "page"}
    for title, code in sections().items():
        code = re.sub("smollm2-135m-instruct|HuggingFaceTB/SmolLM2-135M-Instruct", str(home / "model"), code)
        name = f"docs/python.md: {title}"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # as a notebook has its cells
        if title == "Fine-tune on a DataFrame":
            model_folder(home / "model")
        try:
            exec(compile(code, name, "exec"), names)
        except Exception as error:
            error.add_note(name)
            raise
    assert names["stopped"].steps == 1 and names["stopped"].stopped_early
    assert names["longer"].steps == 2 == len(names["frame"])
    assert sum(names["yes"]) < 0 > sum(names["no"])
    assert names["found"].gain.n == len(names["heldout"])
    assert list(names["run"].metrics.steps("reward/mean")) == [1, 2]
    assert re.search(
        r'^reward = "python:page.score sha256:\w{64}"$', (names["run"].run / "config.toml").read_text(), re.M
    )
    with pytest.raises(pt.UserError, match="`reward`"):  # it must be given again
        pt.resume(names["run"], steps=3, dataset=names["train"])
