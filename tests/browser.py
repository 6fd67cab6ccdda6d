"""Pages as a browser shows them: what a script inside each of them tells."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DARK = "--blink-settings=preferredColorScheme=0"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1600,1000"),
)
BUDGET_MS = 600_000  # of the browser's own clock, which runs ahead while nothing happens
PATIENCE = 150.0  # (s)

PROBE = """<script>{
const errors = [];
addEventListener("error", event => errors.push(
  event.message || `${event.target.src || event.target.href} does not load`), true);
addEventListener("securitypolicyviolation", event => errors.push(
  `${event.violatedDirective} forbids ${event.blockedURI} at line ${event.lineNumber}`));
const before = console.error;
console.error = (...words) => { errors.push(words.join(" ")); before(...words); };
addEventListener("load", () => {
  const told = (%s)();
  // Errors and violations are reported by tasks of their own, some of them after this one.
  setTimeout(() => parent.postMessage(
    JSON.stringify({ errors, width: innerWidth, ...told }), "*"), 100);
});
}</script>"""
FRAME = """<title></title><iframe height="900" frameborder="0"></iframe><script>
const queue = %s, told = [], frame = document.querySelector("iframe");
const next = () => {
  if (!queue.length) { document.title = JSON.stringify(told); return; }
  [frame.src, frame.width] = queue.shift();
};
onmessage = event => { told.push(JSON.parse(event.data)); next(); };
next();
</script>"""


def seen(
    folder: Path, pages: Iterable[str], widths: Iterable[int], script: str, *options: str
) -> dict[tuple[str, int], dict[str, Any]]:
    """What a function in JavaScript tells of pages of a folder, in windows of so many pixels.

    ``errors``, which a page logs or throws or what it cannot load, are told beside it, and
    ``width``.
    """
    probe = PROBE % script
    wanted = [(page, width) for page in pages for width in widths]
    for page in {page for page, _ in wanted}:
        text = (folder / page).read_text("utf-8")
        probed(folder / page).write_text(text.replace("<head>", f"<head>{probe}", 1), "utf-8")
    queue = [[probed(Path(page)).as_posix(), width] for page, width in wanted]
    outer = folder / "frame.html"
    outer.write_text(FRAME % json.dumps(queue), encoding="utf-8")
    told = json.loads(title(outer, *options))
    return dict(zip(wanted, told, strict=True))


def probed(page: Path) -> Path:
    """Where the page with the probe in it stands: beside the page."""
    return page.with_name(f"{page.stem}.probed.html")


def title(page: Path, *options: str) -> str:
    """The title of a page when nothing happens any more."""
    assert BROWSER is not None
    words = [BROWSER, *QUIET, *options, f"--virtual-time-budget={BUDGET_MS}", "--dump-dom"]
    made = subprocess.run(
        [*words, page.as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    found = re.search("<title>(.+?)</title>", made.stdout)
    assert found is not None, made.stderr
    return html.unescape(found[1])
