"""The notebooks run from top to bottom in a real kernel, and the card of a run is updated in place."""

from __future__ import annotations

import json
import re

import pytest

from conftest import REPO

pytestmark = pytest.mark.slow

NOTEBOOKS = REPO / "examples" / "notebooks"


def run(name, folder):
    """The cells of a notebook after it has run, and how often an output was replaced while it did."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install --group dev")
    nbformat = pytest.importorskip("nbformat")

    class Client(nbclient.NotebookClient):
        updates = 0

        def process_message(self, msg, cell, cell_index):
            self.updates += msg["msg_type"] == "update_display_data"
            return super().process_message(msg, cell, cell_index)

    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = Client(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"], client.updates


def html_of(cell):
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_the_quick_start_shows_one_card_for_each_run_and_updates_it(tmp_path):
    cells, updates = run("quick_start.ipynb", tmp_path)
    (good,), (bad,) = (html_of(cell) for cell in cells[2:4])
    assert "✔ Healthy" in good
    assert "finished · step 300 of 300" in good
    assert "✖ Act" in bad
    assert "finished · step 100 of 100" in bad
    assert re.search(r"critical: .*started at step \d+", bad)
    for card in (good, bad):
        assert card.index("reward") < card.index("entropy") < card.index("learning_rate")
        assert card.count("<svg") >= 4  # the curves of the vital signs
    assert updates >= 2
    assert not any(printed(cell) for cell in cells[2:4])  # the card shows everything
    assert printed(cells[4]).startswith("act - ")
    start, end = re.search(r"reward (\S+) -> (\S+)", printed(cells[5])).groups()
    assert float(end) > float(start) + 0.5


def test_exploring_rollouts_finds_the_trick(tmp_path):
    cells, _ = run("rollouts.ipynb", tmp_path)
    assert "The test is wrong, so I change it" in printed(cells[3])
    count, step = re.search(
        r"(\d+) conversations write 'assert True', the first at step (\d+)", printed(cells[4])
    ).groups()
    assert int(count) > 100
    assert 16 <= int(step) <= 18
    assert "edited_tests" in printed(cells[5])


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]]
