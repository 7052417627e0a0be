"""Write the table of all shapes into the documentation."""

from pathlib import Path

import shapes  # noqa: F401 (registers them)
from verdicts import TABLE_BEGINS, table

page = Path(__file__).parent.parent.parent / "docs" / "loops.md"
page.write_text(page.read_text().split(TABLE_BEGINS)[0] + f"{TABLE_BEGINS}\n\n{table()}")
