"""Files of the documentation that its tests import: the site's builder, its figures, and the stages of examples."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(Path(__file__).parent), str(DOCS / "building"), str(DOCS / "figures")]

collect_ignore_glob = [] if DOCS.is_dir() else ["test_*.py"]
"""Beside an installed wheel there is no documentation to test."""
