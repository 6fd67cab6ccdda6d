"""Suite ``foundation``: is training faster than torch's, and does it start at once?"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite, sized
from benchmarks.contestants import FORWARD, TRAIN
from benchmarks.measures.starting import COLD, IMPORT, WARM
from benchmarks.worker import PEAK


def _case(name: str, ratio: float, quick: bool = False, beside: str = "torch") -> Case:
    """A training step against torch's own layer, or a loop over torch ops."""
    return sized(name, TRAIN, beside, OURS, "elman-c", ratio=ratio, quick=quick)


_START: dict[str, Any] = {"T": 100, "B": 4, "H": 128, "quick": True}
_CALL: dict[str, Any] = {  # of a problem with next to no arithmetic
    "T": 1,
    "B": 1,
    "H": 8,
    "contestants": ("torch", OURS, "elman-c"),
    "baseline": "torch",
}
FOUNDATION = Suite(
    "foundation",
    "How fast is a training step, compared with torch, and how long does the first one take?",
    (
        PEAK,
        _case("gru 1000,1,64", 30.0, quick=True),
        _case("gru 1000,1,256", 7.0),
        _case("gru 100,4,128", 6.0, quick=True),
        _case("gru 100,32,256", 2.0),
        _case("gru 50,64,512", 1.5),
        _case("lstm 100,4,128", 1.0, quick=True),
        _case("lstm_layernorm 100,4,128", 20.0, quick=True, beside="loop"),
        _case("lstm_peephole 100,4,128", 20.0, beside="loop"),
        Case("call forward", FORWARD, **_CALL),
        Case("call train", TRAIN, **_CALL),
        Case("first step, cold cache", COLD, seconds=5.0, **_START),
        Case("first step, warm cache", WARM, seconds=0.1, **_START),
        Case("import elman", IMPORT, seconds=0.3, quick=True),
    ),
)
