"""The notebooks run from their first cell to their last, and print what they show."""

import os
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

CHECKOUT = Path(__file__).parents[2]
EVERY = {path.stem: path for path in notebooks.notebooks()}

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("name", EVERY)
def test_a_notebook_runs_and_prints_what_it_shows(name, tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(notebooks.code(EVERY[name])))
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    ran = subprocess.run([sys.executable, "-P", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout == notebooks.printed(EVERY[name]), "make notebooks"


@pytest.mark.parametrize("name", EVERY)
def test_a_page_of_the_site_holds_all_cells_and_pictures_of_a_notebook(name):
    relinked = []
    text, pictures = notebooks.page(EVERY[name], lambda source: relinked.append(source) or source)
    assert relinked[0].startswith("# ")
    assert f"({name}.ipynb)" in text
    for cell in notebooks.code(EVERY[name]):
        assert f"```python\n{cell}\n```" in text
    assert pictures
    for file, picture in pictures.items():
        assert f"]({file})" in text
        assert picture.startswith(b"\x89PNG")
