"""Suite ``cpu``: how fast does a processor run recurrent cells, beside every peer?"""

from __future__ import annotations

from benchmarks.cases import OURS, Case, Suite, sized
from benchmarks.contestants import FORWARD, TRAIN
from benchmarks.worker import PEAK

CELLS = ("gru", "rnn", "lstm")
RATIOS = {  # T,B,H: what is asked of CELLS against torch.nn
    "1000,1,64": (55.0, 45.0, 2.0),
    "1000,1,256": (14.0, 11.0, 1.6),
    "100,4,128": (11.0, 11.0, 1.3),
    "100,1,1024": (6.5, 4.5, 1.4),
    "100,32,256": (3.1, 3.2, 1.03),
    "50,64,512": (2.6, 2.6, 1.0),
    "25,64,1024": (2.5, 2.4, 1.0),
    "10,1000,1000": (2.4, 2.3, 1.05),
}
PEERS = ("1000,1,64", "1000,1,256", "100,4,128", "100,32,256", "50,64,512")
COMPILED = PEERS[2:]
CUSTOM = ("lstm_layernorm", "lem", "leaky_memory")
AWKWARD = ("100,3,100", "100,20,250", "50,33,650")  # sizes that fit no vector
PADDED = ("100,4,112", "100,24,256", "50,36,656")  # the next ones that do
_QUICK = "100,4,128"
_SLOW = "10,1000,1000"  # calls take seconds: engine c is not timed by itself


def _built_in(cell: str, ratio: float, shape: str) -> Case:
    """A training step of one of torch's cells."""
    peers = ("elman-c",) * (shape != _SLOW) + ("jax",) * (cell != "rnn" and shape in PEERS)
    peers += ("compiled",) * (cell == "gru" and shape in COMPILED)
    quick = shape == _QUICK and cell != "gru"
    return sized(f"{cell} {shape}", TRAIN, "torch", OURS, *peers, ratio=ratio, quick=quick)


def _forward(cell: str, shape: str) -> Case:
    """Forward alone, without gradients."""
    quick, name = shape == _QUICK and cell == "gru", f"{cell} {shape} forward"
    return sized(name, FORWARD, "torch", OURS, "onnxruntime", "jax", quick=quick)


CPU = Suite(
    "cpu",
    "How fast is a training step on this processor, compared with every peer?",
    (
        PEAK,
        *(_built_in(c, RATIOS[shape][k], shape) for k, c in enumerate(CELLS) for shape in RATIOS),
        *(_forward(cell, shape) for cell in ("gru", "lstm") for shape in PEERS),
        *(sized(f"{cell} 1000,1,64", TRAIN, "loop", OURS, ratio=30.0) for cell in CUSTOM),
        *(sized(f"{cell} 100,32,256", TRAIN, "loop", OURS) for cell in CUSTOM),
        *(
            sized(f"{cell} 100,4,128 tuned", TRAIN, "tuned-loop", OURS)
            for cell in ("lstm_layernorm", "lstm_peephole")
        ),
        *(
            sized(f"gru {shape}", TRAIN, "torch", OURS)
            for pair in zip(AWKWARD, PADDED, strict=True)
            for shape in pair
        ),
        Case("call train", TRAIN, "gru", 1, 1, 8, 0, ("torch", OURS, "elman-c"), "torch"),
    ),
    seconds=1.6,
)
