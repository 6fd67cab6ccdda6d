"""Time of a training step by torch operator, for each contestant, by torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.autograd.profiler import profile

from benchmarks.cases import Case, Effort, Way
from benchmarks.contestants import draw_layer, enter_layer
from benchmarks.problem import draw_problem
from benchmarks.rows import study
from elman.errors import EngineError

PRODUCTS, POINTWISE, LAYER, MOVING, REST = "products", "pointwise", "layer", "moving", "rest"
_CALLS = 5
_KINDS: dict[str, tuple[str, ...]] = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear"),
    LAYER: ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"),
    POINTWISE: (
        *("aten::add", "aten::add_", "aten::sub", "aten::rsub", "aten::mul", "aten::neg"),
        *("aten::sigmoid", "aten::tanh", "aten::sigmoid_backward", "aten::tanh_backward"),
        "aten::sum",  # of biases over the batch
    ),
    MOVING: (
        *("aten::cat", "aten::stack", "aten::copy_", "aten::clone", "aten::contiguous"),
        *("aten::zero_", "aten::fill_", "aten::zeros", "aten::select_backward"),
    ),
}
KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


def measure_operators(case: Case, effort: Effort) -> dict[str, Any]:
    """Seconds of a training step by kind of operator (their own time), and how many run.

    Whatever is not an operator of torch's, as a kernel of elman's, is among the rest; so is what
    autograd and views take.

    Raises:
        EngineError: a contestant cannot run the case.
    """
    del effort
    profiles = {name: _profiled(name, case) for name in case.contestants}
    texts = [f"{name} {_shares(profile['seconds'])}" for name, profile in profiles.items()]
    return study("; ".join(texts), operators=profiles)


def _profiled(name: str, case: Case) -> dict[str, Any]:
    contestant = enter_layer(name, draw_problem(case))
    if isinstance(contestant, str):
        raise EngineError(contestant)
    contestant.run()
    contestant.run()
    profiler = profile(use_cpu=True)
    with profiler:
        for _ in range(_CALLS):
            contestant.run()
    contestant.close()
    return by_kind((e.key, e.self_cpu_time_total, e.count) for e in profiler.key_averages())


def by_kind(events: Iterable[tuple[str, float, int]]) -> dict[str, Any]:
    """Sum what a profiler told: operators with their own time (µs) and count, over all calls."""
    seconds: dict[str, float] = dict.fromkeys((*_KINDS, REST), 0.0)
    operators = 0
    for name, own_us, count in events:
        seconds[KIND_OF.get(name, REST)] += own_us * 1e-6 / _CALLS
        operators += count if name.startswith("aten::") else 0
    return {"seconds": seconds, "operators": operators // _CALLS}


def _shares(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{kind} {value / total:.0%}" for kind, value in ranked if value > 0.005 * total
    )


OPERATORS = Way("operators", measure_operators, draw_layer, enter_layer)
