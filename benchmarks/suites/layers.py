"""Suites ``layers`` and ``streams``: what torch.nn's layers do beside dense batches."""

from __future__ import annotations

from benchmarks.cases import OURS, Case, KindCase, Suite, sized
from benchmarks.worker import PEAK
from benchmarks.workloads.layer_features import LAYERS as WORK
from benchmarks.workloads.layer_features import TWICE

_QUICK = ("gru packed 100,32,256", "gru stream 16,8,64")
_NOT_SLOWER = 0.97


def _layers(name: str, ratio: float | None, *peers: str) -> Case:
    """A training step, or a gradient, of torch's layer and of elman's; the kind is in the name."""
    kind = " ".join(name.split()[1:-1])
    measure, names = TWICE if kind == "beside" else WORK, ("torch", OURS, *peers)
    quick = name in _QUICK
    return sized(name, measure, *names, of=KindCase, kind=kind, ratio=ratio, quick=quick)


LAYERS = Suite(
    "layers",
    "How fast are packed sequences, stacks, single steps and transforms beside torch.nn?",
    (
        PEAK,
        _layers("gru packed 100,32,256", 2.5, "elman-lengths"),
        _layers("lstm packed 100,32,256", 1.5, "elman-lengths"),
        _layers("gru stacked packed 100,32,256", None, "elman-lengths"),
        _layers("gru stacked 100,32,256", 2.5),
        _layers("lstm stacked 100,32,256", None),
        _layers("gru samples 50,32,64", 5.0, "loop"),
        _layers("lstm samples 50,32,64", None, "loop"),
        _layers("gru penalty 50,32,64", None, "elman-reference"),
        _layers("lstm penalty 50,32,64", None, "elman-reference"),
    ),
    seconds=3.0,
)

STREAMS = Suite(
    "streams",
    "Is a call per step, or a run beside another on the same cores, ever slower than torch.nn?",
    (
        _layers("gru stream 16,8,64", _NOT_SLOWER, "elman-c"),
        _layers("lstm stream 35,20,200", _NOT_SLOWER, "elman-c"),
        _layers("gru acting 100,1,128", _NOT_SLOWER, "elman-c"),
        _layers("lstm acting 100,16,256", _NOT_SLOWER, "elman-c"),
        _layers("gru beside 100,32,256", _NOT_SLOWER),
        _layers("lstm beside 50,16,128", _NOT_SLOWER),
        _layers("gru beside 1000,1,64", _NOT_SLOWER),
    ),
    seconds=3.0,
)
