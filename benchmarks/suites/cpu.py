"""Suite ``cpu``: how fast does a processor run recurrent cells, beside every peer?"""

from __future__ import annotations

from benchmarks.cases import Case, Suite

CELLS = ("gru", "rnn", "lstm")
ASKED = {  # (T, B, H): what is asked of CELLS against torch.nn
    (1000, 1, 64): (55.0, 45.0, 2.0),
    (1000, 1, 256): (14.0, 11.0, 1.6),
    (100, 4, 128): (11.0, 11.0, 1.3),
    (100, 1, 1024): (6.5, 4.5, 1.4),
    (100, 32, 256): (3.1, 3.2, 1.03),
    (50, 64, 512): (2.6, 2.6, 1.0),
    (25, 64, 1024): (2.5, 2.4, 1.0),
    (10, 1000, 1000): (2.4, 2.3, 1.05),
}
PEERS = ((1000, 1, 64), (1000, 1, 256), (100, 4, 128), (100, 32, 256), (50, 64, 512))
COMPILED = ((100, 4, 128), (100, 32, 256), (50, 64, 512))
OWN = ("lstm_layernorm", "lem", "leaky_memory")
AWKWARD = ((100, 3, 100), (100, 20, 250), (50, 33, 650))
PADDED = ((100, 4, 112), (100, 24, 256), (50, 36, 656))
_QUICK = (100, 4, 128)
_SLOW = 1000  # samples from which a call takes seconds: engine c is not timed by itself


def _built_in(index: int) -> list[Case]:
    """A training step of one of torch's cells at every shape."""
    cell, found = CELLS[index], list[Case]()
    for (T, B, H), ratios in ASKED.items():
        peers = ("elman-c",) * (B < _SLOW)
        peers += ("jax",) * (cell != "rnn" and (T, B, H) in PEERS)
        peers += ("compiled",) * (cell == "gru" and (T, B, H) in COMPILED)
        found.append(
            Case(
                f"{cell} {T},{B},{H}",
                "train",
                cell,
                *(T, B, H),
                contestants=("torch", "elman", *peers),
                baseline="torch",
                ratio=ratios[index],
                quick=(T, B, H) == _QUICK and cell != "gru",
            )
        )
    return found


def _forward(cell: str, T: int, B: int, H: int) -> Case:
    """Forward alone, without gradients."""
    return Case(
        f"{cell} {T},{B},{H} forward",
        "forward",
        cell,
        *(T, B, H),
        contestants=("torch", "elman", "onnxruntime", "jax"),
        baseline="torch",
        quick=(T, B, H) == _QUICK and cell == "gru",
    )


def _own(cell: str, T: int, B: int, H: int, ratio: float | None = None) -> Case:
    """A training step of a cell that torch does not have, against a loop over torch ops."""
    return Case(
        f"{cell} {T},{B},{H}",
        "train",
        cell,
        *(T, B, H),
        contestants=("loop", "elman"),
        baseline="loop",
        ratio=ratio,
    )


def _tuned(cell: str, T: int, B: int, H: int) -> Case:
    """The same against a loop that is written as well as torch allows."""
    return Case(
        f"{cell} {T},{B},{H} tuned",
        "train",
        cell,
        *(T, B, H),
        contestants=("tuned-loop", "elman"),
        baseline="tuned-loop",
    )


def _sized(T: int, B: int, H: int) -> Case:
    """A GRU at a size that fits no vector, or at the next one that does."""
    return Case(
        f"gru {T},{B},{H}",
        "train",
        "gru",
        *(T, B, H),
        contestants=("torch", "elman"),
        baseline="torch",
    )


CPU = Suite(
    "cpu",
    "How fast is a training step on this processor, beside every peer?",
    (
        Case("peak", "peak", quick=True),
        *_built_in(0),
        *_built_in(1),
        *_built_in(2),
        *(_forward(cell, *shape) for cell in ("gru", "lstm") for shape in PEERS),
        *(_own(cell, 1000, 1, 64, 30.0) for cell in OWN),
        *(_own(cell, 100, 32, 256) for cell in OWN),
        *(_tuned(cell, 100, 4, 128) for cell in ("lstm_layernorm", "lstm_peephole")),
        *(_sized(*shape) for pair in zip(AWKWARD, PADDED, strict=True) for shape in pair),
        Case(
            "call train",
            "train",
            "gru",
            *(1, 1, 8),
            contestants=("torch", "elman", "elman-c"),
            baseline="torch",
        ),
    ),
    seconds=1.6,
)
