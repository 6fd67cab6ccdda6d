"""Versions of Triton and numpy that do not go together."""

from __future__ import annotations

import pytest

from elman.engines.triton import engine
from elman.engines.triton.engine import TritonEngine

pytestmark = pytest.mark.interpreted


@pytest.mark.parametrize(
    "triton, numpy, fits",
    [("3.6.0", "2.3.5", True), ("3.6.0", "2.4.6", False), ("3.10.0+git", "2.4.6", True)],
)
def test_interpreter(triton: str, numpy: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older interpreter breaks at the first loop: what helps is said instead."""
    monkeypatch.setattr(engine.triton, "__version__", triton)
    monkeypatch.setattr(engine.numpy, "__version__", numpy)
    reason = TritonEngine().lacks("cpu", "float32")
    assert (reason is None) == fits
    if reason is not None:
        assert "pip install 'numpy<2.4'" in reason
    assert TritonEngine().lacks("cuda", "float32") is None
