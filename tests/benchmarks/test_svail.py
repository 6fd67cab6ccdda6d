"""Suite svail: variants are what the post's are, claims are judged on rows, models are trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import Effort
from benchmarks.contestants import CONTESTANTS
from benchmarks.suites.svail import (
    PLACES,
    SVAIL,
    VARIANTS,
    case_name,
    measure_variants,
)
from elman.errors import VerifyError

LEAST = Effort(1e-9, 1, 1)
BY_NAME = {case.name: case for case in SVAIL.cases}


def test_variants_agree(monkeypatch):
    """All variants of one formula compute the same; one that does not is found."""
    small = replace(BY_NAME[case_name(PLACES[0])], T=3, B=2, H=9)
    result = measure_variants(small, LEAST)
    assert not result["absent"]
    assert [*result["seconds"]] == [*VARIANTS]
    assert result["ratio"].keys() == {*VARIANTS} - {small.baseline}
    other = CONTESTANTS["elman-c"]
    monkeypatch.setitem(CONTESTANTS, "elman-save", lambda p: other(replace(p, x=p.x + 0.1)))
    with pytest.raises(VerifyError, match="elman-save disagrees with elman-c"):
        measure_variants(small, LEAST)
