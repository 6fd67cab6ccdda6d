"""Suite ``layers``: what torch.nn's layers do beside dense batches of one layer."""

from __future__ import annotations

from benchmarks.cases import Case, Suite

_QUICK = "gru packed 100,32,256"
_NOT_SLOWER = 0.97
_STREAM = "gru stream 16,8,64"


def _layers(
    kind: str,
    cell: str,
    T: int,
    B: int,
    H: int,
    ratio: float | None,
    contestants: tuple[str, ...] = (),
) -> Case:
    """A training step, or a gradient, of torch's layer and of elman's."""
    name = f"{cell} {kind} {T},{B},{H}"
    return Case(
        name,
        "layers",
        cell,
        *(T, B, H),
        contestants=("torch", "elman", *contestants),
        baseline="torch",
        ratio=ratio,
        kind=kind,
        quick=name in (_QUICK, _STREAM),
    )


LAYERS = Suite(
    "layers",
    "How fast are packed sequences, stacks, single steps and transforms beside torch.nn?",
    (
        Case("peak", "peak", quick=True),
        _layers("packed", "gru", 100, 32, 256, 2.5, ("elman-lengths",)),
        _layers("packed", "lstm", 100, 32, 256, 1.5, ("elman-lengths",)),
        _layers("stacked packed", "gru", 100, 32, 256, None, ("elman-lengths",)),
        _layers("stacked", "gru", 100, 32, 256, 2.5),
        _layers("stacked", "lstm", 100, 32, 256, None),
        _layers("samples", "gru", 50, 32, 64, 5.0, ("loop",)),
        _layers("samples", "lstm", 50, 32, 64, None, ("loop",)),
        _layers("penalty", "gru", 50, 32, 64, None, ("elman-reference",)),
        _layers("penalty", "lstm", 50, 32, 64, None, ("elman-reference",)),
    ),
    seconds=3.0,
)

STREAMS = Suite(
    "streams",
    "Is a call per step, or a run beside another on the same cores, ever slower than torch.nn?",
    (
        _layers("stream", "gru", 16, 8, 64, _NOT_SLOWER, ("elman-c",)),
        _layers("stream", "lstm", 35, 20, 200, _NOT_SLOWER, ("elman-c",)),
        _layers("acting", "gru", 100, 1, 128, _NOT_SLOWER, ("elman-c",)),
        _layers("acting", "lstm", 100, 16, 256, _NOT_SLOWER, ("elman-c",)),
        _layers("beside", "gru", 100, 32, 256, _NOT_SLOWER),
        _layers("beside", "lstm", 50, 16, 128, _NOT_SLOWER),
        _layers("beside", "gru", 1000, 1, 64, _NOT_SLOWER),
    ),
    seconds=3.0,
)
