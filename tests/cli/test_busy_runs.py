"""A run whose speed was compared on a busy machine says so, wherever the ratio stands."""

from __future__ import annotations

import json

import pytest

TOLD = "Other programs took the cores for 40% of the time"


@pytest.fixture
def runs(root):
    """Two runs, of which one was compared on a busy machine."""
    for name, waited in (("bad", 0.4), ("good", 0.05)):
        path = root / name / "result.json"
        result = json.loads(path.read_text())
        assert 0.0 <= result["speed"]["waited"] <= 1.0
        result["speed"]["waited"] = waited
        path.write_text(json.dumps(result))
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("without_charts")
def test_a_ratio_of_a_busy_machine_is_marked(runs, elman):
    """In the list, below it, and in the report; a quiet one is not."""
    code, told, _ = elman("runs", f"--out={runs}", "--report")
    assert code == 0
    assert told.count("(busy)") == 1
    assert f"bad: {TOLD}" in told
    assert "good: Other" not in told
    pages = {name: (runs / name / "report.html").read_text() for name in ("bad", "good")}
    assert TOLD in pages["bad"]
    assert TOLD not in pages["good"]
