"""What a newcomer sees first: the logo, the README's picture, the compiler's stages."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from scripts import module_of

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
GROUNDS = ("#ffffff", "#0d1117")  # of pages, light and dark
LEAST_CONTRAST = 3.0  # of graphical objects, by WCAG 2.2


@pytest.fixture(scope="module")
def stages_page() -> ModuleType:
    """docs/stages_page.py."""
    return module_of(ROOT / "docs" / "stages_page.py")


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(v * share for v, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_the_logo_is_seen_on_both_grounds():
    """Small, without text, and in colours for light and dark pages."""
    text = (PICTURES / "logo.svg").read_text("utf-8")
    assert len(text.encode()) < 4096
    assert "<text" not in text
    colours = set(re.findall(r"#[0-9a-f]{6}", text))
    assert len(colours) == 3
    for colour in colours:
        for ground in GROUNDS:
            darker, lighter = sorted((_luminance(colour), _luminance(ground)))
            assert (lighter + 0.05) / (darker + 0.05) >= LEAST_CONTRAST, (colour, ground)


def test_the_picture_of_the_readme_is_drawn_by_the_code():
    """If it differs: python docs/readme_picture.py."""
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, text in module_of(ROOT / "docs" / "readme_picture.py").pictures().items():
        assert (PICTURES / name).read_text("utf-8") == text, name
        assert f"docs/pictures/{name}" in readme
        ElementTree.fromstring(text)
        assert "@media" not in text


def test_stages_are_the_codes_own(stages_page):
    """Each says what the plan hoists and saves; its picture shows no more than it says."""
    made = stages_page.drawings()
    told = {stage.name: stage.text for stage in stages_page.stages(made)}
    assert "`z_x`, `xn` and `r_x`" in told["Hoisting"]
    assert "`z`, `hn`, `r` and `n` (filled)" in told["Tape"]
    assert "`1 - z` is computed again" in told["Tape"]
    text = stages_page.c_text()
    assert text.count("v_sigmoid") == 2
    assert text.splitlines()[-1].startswith("st(nx0")
    shown = [[word in svg for word in ("σ′", 'class="band"', " taped")] for svg in made.values()]
    assert shown == [[after <= stage for after in (1, 2, 3)] for stage in range(4)]


def test_every_stage_has_its_button(stages_page):
    """And its rules in the style sheet, without which it would not be seen."""
    page = stages_page.stages_page()["stages.md"]
    count = page.count('type="radio"')
    assert count == page.count('class="panel"') == 6
    assert page.count(" checked") == 1
    style = (ROOT / "docs" / "_static" / "site.css").read_text("utf-8")
    for part in ("tabs", "panels"):
        rule = rf"nth-of-type\((\d)\):checked ~ \.{part} > :nth-child\((\d)\)"
        assert re.findall(rule, style) == [(str(k), str(k)) for k in range(1, count + 1)]
