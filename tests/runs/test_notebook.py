"""What a notebook shows: whether it is one, and that no text of a model or a file becomes HTML."""

import sys
from types import SimpleNamespace

import pytest

from posttrain.report import Finding, Severity
from posttrain.runs.result import in_notebook, page_of


class ZMQInteractiveShell:
    pass


class Shell(ZMQInteractiveShell):  # Colab's
    pass


@pytest.mark.parametrize(
    ("shell", "is_one"), [(ZMQInteractiveShell(), True), (Shell(), True), (None, False), (1, False)]
)
def test_a_notebook_is_known_by_its_shell(monkeypatch, shell, is_one):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is is_one


def test_a_page_escapes_what_it_shows_and_says_options_as_python_has_them():
    rows = [{"step": step, "reward/mean": step / 2, "reward/parts/<b>": 1.0} for step in (1, 2)]
    page = page_of("<run>", "1 < 2", rows, [Finding(Severity.NOTE, "<script>", "type a smaller `lr`")])
    assert "&lt;run&gt;" in page and "1 &lt; 2" in page and "<script>" not in page and "<b>&lt;script" in page
    assert 'src="data:image/svg+xml;base64,' in page and "a smaller `lr`" in page
    assert "<ul>" not in page_of("run", "", rows)
