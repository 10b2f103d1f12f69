"""examples/first.ipynb runs as it stands, and shows progress, curves and the verdict; so does any run in a notebook."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.recipes.folders import model_folder

FILE = Path(__file__).parents[2] / "examples/first.ipynb"
SOURCE = str(Path(__file__).parents[2] / "src")


def executed(notebook, folder, monkeypatch):
    """The code cells after a run of all, in a kernel of this interpreter."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("IPYTHONDIR", str(folder))
    NotebookClient(
        notebook, timeout=550, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    nbformat.write(notebook, folder / "executed.ipynb")  # to look at, with jupyter or nbconvert
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def html(cell):
    """What a cell shows as HTML, as it is in the end."""
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


@pytest.mark.parametrize("whole", [pytest.param(True, marks=pytest.mark.model), False], ids=["as it stands", "tiny"])
def test_the_first_notebook(whole, tmp_path, monkeypatch):
    """As it stands it learns; on a tiny model, in two steps, it shows the same."""
    notebook = nbformat.read(FILE, 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    code = "\n".join(cell.source for cell in cells)
    assert len(code.splitlines()) <= 25 and code in (FILE.parents[1] / "README.md").read_text()
    steps = 18 if whole else 2
    for cell in cells if not whole else ():
        small = f'pt.SFT(model="{model_folder(tmp_path / "model")}", '
        cell.source = cell.source.replace("pt.SFT(", small).replace("steps=18,", "steps=2,")
    _, cold, run, found, said = executed(notebook, tmp_path, monkeypatch)
    (live,) = [page for page in html(cold) if "<img" in page]
    assert "step 8 of 8" in live and ("The training loss falls" in live or not whole)
    (live,) = [page for page in html(run) if "<img" in page]
    assert f"step {steps} of {steps}" in live and "<li><b>" in live  # the verdict, which noise may change
    gain, low, high = map(float, re.findall(r"[+-]\d\.\d\d", printed(found)))
    assert low <= gain <= high
    if whole:
        assert float(printed(run).split()[0]) > 0.8 and gain > 0.1
    assert any("baseline</b>" in page for page in html(found))
    assert said.outputs[0].data["text/plain"] == "'7'" or not whole
    assert not [cell for cell in (cold, run, found, said) if "Warning" in printed(cell)]


TINY = """\
import posttrain as pt

class Short:
    def __call__(self, completion):
        return len(completion) < 9

rows = [{"prompt": f"{a}+1="} for a in range(4)]
form = pt.RL(dataset=rows, model="MODEL", reward=Short(), algorithm=pt.GRPO(kl_coefficient=0), steps=2,
    prompts_per_step=2, completions_per_prompt=2, max_new_tokens=4)
run = pt.run(form)"""


def test_a_run_in_a_notebook_shows_where_it_is_and_what_cannot_be_checked(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "model")
    cells = [new_code_cell(TINY.replace("MODEL", str(folder))), new_code_cell("run"), new_code_cell("pt.resume(run)")]
    cells[2].metadata["tags"] = ["raises-exception"]
    trained, shown, resumed = executed(new_notebook(cells=cells), tmp_path, monkeypatch)
    (live,) = [page for page in html(trained) if "<img" in page]
    assert "step 2 of 2" in live and "2 steps" in html(shown)[0]
    assert "no source of `reward` is found" in "".join([*html(trained), printed(trained)])
    assert "dataset=..., reward=..." in resumed.outputs[-1].evalue
