"""The site's page of each cell: its code runs, its drawing and its family are there."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import elman
from elman import cells
from scripts import module_of

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def cell_pages() -> ModuleType:
    """docs/cell_pages.py."""
    return module_of(DOCS / "cell_pages.py")


@pytest.mark.parametrize("cell", cells.ALL)
def test_code_runs(cell_pages, cell):
    """As it is shown, with fewer steps and samples."""
    code = cell_pages.use(cell)
    small = code.replace("rand(100, 16", "rand(3, 2").replace("rand(16", "rand(2")
    assert small != code
    with elman.using(engine="reference"):
        names: dict[str, torch.Tensor] = {}
        exec(small, names)
    assert names["out"].shape[:2] == (3, 2)
    assert names["out"].isfinite().all()


def test_the_graph_comes_first(cell_pages):
    """Before the code: a picture without weights, which a telephone shows; below, the whole."""
    page = cell_pages.page(cells.gru)
    places = [page.index(text) for text in ("gru-forward.svg", "## Use", "{image} gru.svg")]
    assert places == sorted(places)
    assert "W.0" in cell_pages.drawing(cells.gru)
    assert "W.0" not in cell_pages.drawing(cells.gru, True)
    card = cell_pages.index().partition("cells/gru-forward.svg")[2].partition("\n- ")[0]
    for text in ("](cells/gru.md)", "2014", 'class="bar"', "Gated recurrent unit"):
        assert text in card


def test_every_cell_has_one_family(cell_pages):
    members = [cell.name for family in cell_pages.FAMILIES.values() for cell in family]
    assert sorted(members) == sorted(cell.name for cell in cells.ALL)
    assert cell_pages.FAMILIES.keys() == cell_pages.ABOUT.keys()


def test_every_cell_has_its_use(cell_pages):
    """A sentence on its page: when to take it."""
    assert cell_pages.USES.keys() == {cell.name for cell in cells.ALL}
    assert all(text.endswith(".") for text in cell_pages.USES.values())


def test_sources_are_links(cell_pages):
    """Numbers of arXiv with their version, DOIs up to the mark that ends them."""
    text = cell_pages.linked("A 2019, arXiv:1810.09536v2, eq. 9; B 2019, doi:10.5194/a-23-5089; C")
    assert "[arXiv:1810.09536v2](https://arxiv.org/abs/1810.09536v2), eq. 9" in text
    assert "[doi:10.5194/a-23-5089](https://doi.org/10.5194/a-23-5089); C" in text


def test_a_page_has_facts_and_formula(cell_pages):
    """States, parameters, constants, options with their defaults, and code that can be copied."""
    page = cell_pages.page(cells.gru_d)
    assert "from elman import cell\n" in page
    assert "elman.frontend" not in page
    for text in ("`h[H]`, `last[I]`", "| constants | `mean[I]` |", "from elman.ops import exp"):
        assert text in page
    assert "`beta=0.9`" in cell_pages.page(cells.lif)
    assert "Raises" not in cell_pages.explanation(cells.cfc)
