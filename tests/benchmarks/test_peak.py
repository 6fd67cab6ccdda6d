"""The peak of a machine: what its loop is, and what it gives."""

from __future__ import annotations

import pytest

from benchmarks.peak import CHAINS, peak_gflops, peak_text
from elman.engines.c.compilation.build import Compiler, find_compiler
from elman.engines.c.compilation.isa import ISAS


@pytest.mark.parametrize("isa", ISAS.values())
def test_peak_text(isa):
    """Independent chains of one multiplication and one addition, in vectors of the ISA."""
    text = peak_text(isa)
    assert f"vector_size({isa.vector_bytes})" in text
    assert text.count("* m + a;") == CHAINS


@pytest.mark.slow
def test_peak(monkeypatch):
    """It compiles, runs on every number of threads, and gives a speed that a processor can have."""
    if not isinstance(find_compiler(), Compiler):
        pytest.skip(str(find_compiler()))
    monkeypatch.setattr("benchmarks.peak.TRIES", 1)
    found = peak_gflops((1,))
    assert "1" in found
    assert all(0.1 < gflops < 1e6 for gflops in found.values())
