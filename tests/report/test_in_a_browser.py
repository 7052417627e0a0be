"""Pages in a real headless browser: axe-core finds nothing wrong, nothing scrolls sideways, nothing is fetched.

``PACELINE_AXE`` names axe-core's ``axe.min.js`` (``npm install axe-core``); Chromium or Chrome must be on the path.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from test_pages import KINDS, NAMES

from paceline.report import render

AXE = os.environ.get("PACELINE_AXE", "")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not (AXE and BROWSER), reason="needs PACELINE_AXE=axe.min.js and Chromium"),
]

ASK = """<script>%s</script><script>
addEventListener("load", async () => {
  const slider = document.querySelector(".tools input"), faults = [];
  if (slider) {
    slider.value = slider.max; slider.dispatchEvent(new Event("input"));
    if (!slider.closest(".tools").querySelector("output").textContent) faults.push("the slider reads nothing");
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push("it scrolls sideways");
  if (performance.getEntriesByType("resource").length) faults.push("it fetches something");
  const found = await axe.run();
  for (const one of found.violations) faults.push(one.id + ": " + one.nodes.map((node) => node.html).join(" | "));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  parent.postMessage(JSON.stringify({ faults, dark, width: innerWidth }), "*");
});
</script></body>"""

FRAME = """<iframe src="page.html" style="border: 0; width: %dpx; height: 4000px"></iframe><pre id="said"></pre><script>
addEventListener("message", (event) => { document.getElementById("said").textContent = event.data; });
</script>"""
"""A headless window is never narrower than 500 pixels; a frame is."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return {kind: render(made(tmp_path_factory.mktemp(kind), NAMES)) for kind, made in KINDS.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_wrong(texts, tmp_path, kind, width, scheme):
    found = asked(texts[kind], tmp_path, width, scheme)
    assert found == {"faults": [], "dark": scheme == "dark", "width": width}


def test_axe_finds_what_is_wrong(texts, tmp_path):
    found = asked(texts["run"].replace('<html lang="en">', "<html>"), tmp_path, 1400, "light")
    assert any("html-has-lang" in fault for fault in found["faults"])


def asked(text, folder, width, scheme):
    """What the browser says of a page: the policy that forbids other scripts is taken out, for axe's own."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (folder / "page.html").write_text(text.replace("</body>", ASK % Path(AXE).read_text("utf-8")))
    (folder / "frame.html").write_text(FRAME % width)
    options = ["--headless", "--no-sandbox", "--virtual-time-budget=20000", "--window-size=1500,900"]
    options += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *options, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    (said,) = re.findall(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(unescape(said))
