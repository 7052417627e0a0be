"""Build the documentation: ``make docs``. The site lies in ``build/site``, and loads nothing from another host.

Any warning, and any link that leads nowhere, is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checks import faults, undocumented
from links import ROOT
from site_pages import PAGES, assembled

SITE = ROOT / "build" / "site"


def main() -> None:
    """Assemble the pages, build them strictly and check the result."""
    pages = assembled()
    builder = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}  # where the extension of griffe finds its parts
    built = subprocess.run(builder, cwd=ROOT, env=here, capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"{built.stdout}{built.stderr.split('Traceback')[0]}the site has warnings, or could not be built")
    wrong = faults(SITE) + undocumented(PAGES, SITE)
    if wrong:
        sys.exit("\n".join([*wrong, f"the site has {len(wrong)} links that lead nowhere"]))
    print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}: python -m http.server -d {SITE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
