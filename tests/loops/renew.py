"""Write the table of all shapes into the documentation."""

import sys
from pathlib import Path

import shapes  # noqa: F401 (registers them)
from verdicts import TABLE_BEGINS, table

page = Path(__file__).parent.parent.parent / "docs" / "reference" / "loops.md"
before, found, _ = page.read_text("utf-8").partition(TABLE_BEGINS)
if not (found and before.startswith("# ")):
    sys.exit(f"{page} must begin with its title and hold the line {TABLE_BEGINS!r}: restore what stood before it")
page.write_text(f"{before}{TABLE_BEGINS}\n\n{table()}")
