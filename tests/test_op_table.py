"""The table of operations in the documentation: every rule is in it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from xml.sax.saxutils import escape

import pytest

from elman.autodiff.rules import VJP

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def op_table(monkeypatch) -> ModuleType:
    """docs/op_table.py."""
    monkeypatch.syspath_prepend(DOCS)
    return pytest.importorskip("op_table")


def test_every_rule_is_in_the_table(op_table):
    """Each operation with a VJP row stands in the picture of operations, with the row's formula."""
    found = {name: rule for rule in op_table.rules() for name in rule.names}
    assert found.keys() == VJP.keys()
    assert found["mul"].back == ("δ·y", "δ·x")
    assert found["mul"].needed == {"x", "y"}
    assert found["lin"].back == ("δ", "δ")
    assert found["matmul"].back == ("δ ⊗ x", "Wᵀ @ δ")
    assert (found["tanh"].back, found["tanh"].needed) == (("δ·(1 - h·h)",), {"h"})
    assert found["lt"].back == (None, None)
    text = op_table.table()
    ElementTree.fromstring(text)
    for rule in found.values():
        for part in rule.back:
            assert part is None or escape(part) in text


def test_the_table_follows_the_rows(op_table, monkeypatch):
    """There is no second list: another row is another picture."""
    monkeypatch.setitem(VJP, "exp", lambda b, n, d: (b.mul(d, b.mul(n, n)),))
    (rule,) = [rule for rule in op_table.rules() if rule.names == ("exp",)]
    assert rule.back == ("δ·h·h",)
