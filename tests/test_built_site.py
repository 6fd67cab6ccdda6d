"""The documentation as a site: built without a warning, and as a browser shows it."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import elman
from benchmarks.rows import read_rows
from benchmarks.suites import SUITES
from browser import DARK, needs_browser, seen

ROOT = Path(__file__).parents[1]
WIDTHS = (400, 1400)  # a telephone, a desk
LEAST_CONTRAST = 3.0  # of large text, by WCAG 2.2
pytestmark = pytest.mark.slow

# What a reader would miss: parts that are cut off, pictures that are not there, text that is not
# seen on its ground.
PROBE = """() => {
  const shown = [...document.querySelectorAll("article *, .sidebar-container *")];
  const cut = shown.filter(e => !e.closest(".drawing, .highlight, .sidebar-drawer")
    && e.parentElement.closest(".table-wrapper") === null
    && e.getBoundingClientRect().right > innerWidth + 1);
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = e => {
    const own = channels(getComputedStyle(e).backgroundColor);
    return own.length < 4 || own[3] > 0.5 || !e.parentElement ? own : ground(e.parentElement);
  };
  const contrast = e => {
    const [a, b] = [light(channels(getComputedStyle(e).color)), light(ground(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const words = [...document.querySelectorAll("article *")];
  const texts = words.filter(e => !e.closest("svg, .headerlink")
    && e.checkVisibility({ opacityProperty: true })
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  const name = e => `${e.tagName}.${e.className.baseVal ?? e.className}: `
    + e.textContent.trim().slice(0, 40);
  return {
    cut: cut.slice(0, 5).map(name),
    faint: texts.filter(e => contrast(e) < %s).slice(0, 5).map(name),
    missing: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
    wide: document.documentElement.scrollWidth > innerWidth,
    ground: getComputedStyle(document.body).backgroundColor };
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built without a warning: a link that leads nowhere, a name that is not there."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs")
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    done = subprocess.run(
        [*words, "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr
    return folder / "site"


def pages(site: Path) -> list[str]:
    """What a reader can come to."""
    found = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return sorted(name for name in found if not name.endswith((".probed.html", "frame.html")))


def test_has_everything(site):
    """Every public name has its entry, every cell its picture, every case of a suite its row."""
    built = site / "_built"
    reference = (built / "reference.html").read_text("utf-8")
    names = [n for n in elman.__all__ if n not in ("cells", "ops", "__version__")]
    missing = [n for n in names if f"elman.{n}" not in reference]
    assert not missing
    assert "S]</strong>" not in reference  # a shape that was taken apart at its comma
    text = re.sub(r"<pre>.*?</pre>|<title>.*?</title>", "", reference, flags=re.S)
    assert not re.findall(
        r"<strong>\[|.*``|.*:(?:class|func|meth):", text
    )  # marks not read as such
    gallery = (built / "gallery.html").read_text("utf-8")
    for cell in elman.cells.ALL:
        assert f'href="cells/{cell.name}.html"' in gallery
        assert f"_images/{cell.name}.svg" in (built / "cells" / f"{cell.name}.html").read_text(
            "utf-8"
        )
    results = (site / "results.html").read_text("utf-8")
    kept = (ROOT / "benchmarks" / "results").glob("*.jsonl")
    cases = {
        (path.stem, name) for path in kept if path.stem in SUITES for name in read_rows(path)
    } & {(suite.name, case.name) for suite in SUITES.values() for case in suite.cases}
    assert len(cases) > 100
    told = html.unescape(results)
    assert not [name for _, name in cases if name != "peak" and name not in told]
    links = re.findall(r'(?:src|href)="(https?://[^"]+)"', gallery.partition("<body")[0])
    assert not links, "the site needs a network"


class Links(HTMLParser):
    """What a page leads to, and what can be led to in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def test_links_and_anchors_exist(site):
    """Within the site; nothing but links of the text leads out of it."""
    read = {name: Links(site / name) for name in pages(site)}
    dead = []
    for name, page in read.items():
        for link in page.links:
            there = urlsplit(link)
            if there.scheme or there.netloc:
                continue
            path = ((site / name).parent / unquote(there.path)).resolve() if there.path else None
            target = path.relative_to(site.resolve()).as_posix() if path else name
            anchors = read[target].anchors if target in read else {"", unquote(there.fragment)}
            if not (site / target).exists() or unquote(there.fragment) not in anchors:
                dead.append(f"{name}: {link}")
    assert not dead


@needs_browser
@pytest.mark.parametrize("some", [2, pytest.param(999, marks=pytest.mark.long)])
def test_light_and_dark_on_a_telephone_and_on_a_desk(site, some):
    """No error, nothing cut off or missing, no text that is hardly seen; of some pages of each
    folder, as of cells, which are made alike."""
    folders = groupby(pages(site), key=lambda name: name.rpartition("/")[0])
    names = [name for folder, inside in folders for name in [*inside][: some if folder else None]]
    probe = PROBE % LEAST_CONTRAST
    light = seen(site, names, WIDTHS, probe)
    dark = seen(site, names, WIDTHS[1:], probe, DARK)  # the width changes no colour
    good = {"errors": [], "cut": [], "faint": [], "missing": [], "wide": False}
    for told in (light, dark):
        bad = {
            (page, width): {key: found[key] for key in good if found[key] != good[key]}
            for (page, width), found in told.items()
        }
        assert not {where: what for where, what in bad.items() if what}
        assert all(found["width"] == width for (_, width), found in told.items())
    assert all(light[where]["ground"] != dark[where]["ground"] for where in dark)
