"""Suite ``cpu``: how fast does a processor run recurrent cells, beside every peer?"""

from __future__ import annotations

from elman.bench.cases import Case, Suite

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
_QUICK = (100, 4, 128)


def _built_in(index: int) -> list[Case]:
    """A training step of one of torch's cells at every shape."""
    cell = CELLS[index]
    return [
        Case(
            f"{cell} {T},{B},{H}",
            "train",
            cell,
            *(T, B, H),
            contestants=("torch", "elman", "elman-c"),
            baseline="torch",
            ratio=ratios[index],
            quick=(T, B, H) == _QUICK,
        )
        for (T, B, H), ratios in ASKED.items()
    ]


CPU = Suite(
    "cpu",
    "How fast is a training step on this processor, beside every peer?",
    (Case("peak", "peak", quick=True), *_built_in(0), *_built_in(1), *_built_in(2)),
)
