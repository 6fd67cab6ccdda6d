"""Suite ``depth``: do residual layers let deep recurrent networks learn?"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Suite, TrainedCase
from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict
from benchmarks.studies import RESIDUAL
from benchmarks.sweeps import Sweep

LAYERS = (1, 3, 10, 30, 100)
STEPS = 150
_DEEP = 10  # layers from which a stack is deep
_HARDLY = 0.05  # bits per character that seeds differ by


def name_of(layers: int) -> str:
    """The case of a depth."""
    return f"{layers} layers"


def bits(rows: Rows) -> dict[int, dict[str, float]]:
    """Bits per character by layers, plain and residual.

    Raises:
        UnmeasuredError: no deep stack was trained.
    """
    rows.among(map(name_of, (n for n in LAYERS if n >= _DEEP)), "no deep stack was trained")
    return {n: rows[name_of(n)]["bits"] for n in LAYERS if name_of(n) in rows}


def _listed(numbers: list[int]) -> str:
    return " and ".join(map(str, numbers))


def _applies(rows: Rows) -> Verdict:
    deep = {n: losses for n, losses in bits(rows).items() if n >= _DEEP}
    gains = {n: losses["plain"] - losses["residual"] for n, losses in deep.items()}
    texts = ", ".join(f"{gain:+.2f} at {n}" for n, gain in gains.items())
    worse = [n for n, gain in gains.items() if gain <= _HARDLY]
    reasons = Reasons(
        "with its input added, the gradient of a layer's output reaches the layers below whole",
        f"at {_listed(worse)} layers the sum of all layers' outputs grows with their number, "
        "and nothing in these stacks brings it back",
    )
    facts = f"gained over plain stacks; seeds differ by {_HARDLY:g}"
    return Verdict(not worse, f"{texts} layers (bits per character)", facts=facts, reasons=reasons)


def _deeper(rows: Rows) -> Verdict:
    blocks = {n: losses["norms"] for n, losses in bits(rows).items()}
    if 1 not in blocks:
        raise UnmeasuredError("one layer was not trained")
    worse = [n for n in blocks if n >= _DEEP and blocks[n] > blocks[1] + _HARDLY]
    texts = ", ".join(f"{value:.2f} at {n}" for n, value in blocks.items())
    facts = (
        f"after {STEPS} steps of the same optimizer, with a norm in front of each layer and behind "
        "the last; possible is what learns at least as well as one layer"
    )
    reasons = Reasons(
        "each layer reads numbers of size one, however many layers were added before",
        f"{_listed(worse)} layers have not learned as much after as many steps",
    )
    return Verdict(not worse, f"{texts} (bits per character)", facts=facts, reasons=reasons)


_SIZES: dict[str, Any] = {"cell": "gru", "T": 32, "B": 8, "H": 64, "steps": STEPS}
DEPTH = Suite(
    "depth",
    "Do residual layers let deep recurrent networks learn?",
    tuple(
        TrainedCase(name_of(n), RESIDUAL, layers=n, quick=n in (1, 10), **_SIZES) for n in LAYERS
    ),
    source="Diamos, Persistent RNNs: 30 times faster RNN layers at small minibatches (Baidu, 2016)",
    claims=(
        Claim("residual", "residual skip connections apply to RNNs", "", _applies),
        Claim("residual", "models with more layers become possible", "", _deeper),
    ),
    sweep=Sweep(
        f"after {STEPS} training steps",
        *("layers", "bits per character", LAYERS, ("plain", "residual", "norms")),
        lambda rows, name, n: rows[name_of(n)]["bits"][name],
        log="x",
    ),
)
