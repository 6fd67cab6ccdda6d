"""Formulas of the documentation's pages become MathML that a parser accepts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.fixture
def mathml(monkeypatch) -> ModuleType:
    """docs/mathml.py."""
    pytest.importorskip("docutils")
    monkeypatch.syspath_prepend(DOCS)
    return pytest.importorskip("mathml")


def text_of(element: str) -> str:
    return "".join(ElementTree.fromstring(re.sub(r"&#x2061;", "", element)).itertext())


@pytest.mark.parametrize("page", PAGES)
def test_formulas_of_pages(mathml, page):
    for tex in mathml.formulas_in(page.read_text("utf-8")):
        assert text_of(mathml.mathml(tex, block=True))


def test_scripts_fractions_and_tables(mathml):
    assert "<msubsup><mi>a</mi><mi>t</mi><mn>2</mn></msubsup>" in mathml.mathml("a_t^2")
    assert "<munder><mo>∑</mo><mi>i</mi></munder>" in mathml.mathml(r"\sum_i c_i")
    assert "<mfrac><mi>a</mi><mrow><mi>b</mi></mrow></mfrac>" in mathml.mathml(r"\frac a{b}")
    table = mathml.mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}")
    assert (table.count("<mtr>"), table.count("<mtd>")) == (2, 4)
    assert "<mtext>a &lt; b</mtext>" in mathml.mathml(r"\text{a < b}")
    assert "<mtext>&#160;a</mtext>" in mathml.mathml(r"x\text{ a}")
    power = mathml.mathml(r"\left(\frac a b\right)^2")
    assert power.startswith("<math><mrow><msup><mrow><mo>(</mo>")
    assert "(3)" in mathml.mathml("a", True, "3")


@pytest.mark.parametrize("tex", [r"\unknown", "{a", "a}", r"\frac a", r"\begin{aligned} a"])
def test_mistakes_fail_the_build(mathml, tex):
    with pytest.raises(mathml.FormulaError):
        mathml.mathml(tex)
