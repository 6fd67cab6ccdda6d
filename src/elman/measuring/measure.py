"""Measurement of a cell beside its plain loop: agreement, then times in alternating rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from elman import compiler
from elman.checks import check_flag, check_number, check_size, check_text
from elman.errors import InputError, VerifyError
from elman.frontend.cell import Cell
from elman.measuring.plain_loop import Pairing
from elman.measuring.step_loop import StepPairing
from elman.nn.modules.recurrent import Recurrent
from elman.plan.build import program
from elman.plan.cost import backward_work, forward_work
from elman.plan.spec import PlanOptions, Spec
from elman.tuning.agreement import disagreement
from elman.tuning.machine import Waiting, describe_waiting
from elman.tuning.timing import Quartiles, quartiles, ratios, time_interleaved

ELMAN, LOOP = "elman", "loop"
SHORT = 10  # steps over which formulas are compared that amplify rounding
DAY_S = 86_400.0
ROUNDS = 5


@dataclass(frozen=True)
class Measurement:
    """A cell beside its plain loop; ``print`` it.

    Attributes:
        cell: its name.
        sizes: of its dims.
        steps, batch: T and B.
        dtype, threads, training: of the computation; training: with a backward.
        seconds: of a call, ``"elman"`` and ``"loop"``.
        ratio: how many times as fast as the loop, round by round.
        errors: of each result and gradient, relative to the loop in float64.
        compared: steps over which errors were taken.
        engine, schedule: of elman's kernel.
        waited: share of the time for which threads wanted a core and had none.
        flop: of a call's products with weights.
        draws: whether the cell draws random numbers, which are expected values here.
    """

    cell: str
    sizes: dict[str, int]
    steps: int
    batch: int
    dtype: str
    threads: int
    training: bool
    seconds: dict[str, Quartiles]
    ratio: Quartiles
    errors: dict[str, float]
    compared: int
    engine: str
    schedule: str
    waited: float
    flop: int
    draws: bool

    @property
    def gflops(self) -> float:
        """GFLOP/s of the products with weights; 0 where a cell has none."""
        return self.flop / self.seconds[ELMAN].median / 1e9

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in sorted(self.sizes.items()))
        passes = "forward and backward" if self.training else "forward"
        over = "" if self.compared == self.steps else f", over {self.compared} steps"
        lines = [
            f"{self.cell}: T = {self.steps}, B = {self.batch}, {sizes}; {self.dtype}, "
            f"{self.threads} threads, {passes}",
            f"agrees with the loop in float64{over} (relative error):",
            *(f"  {name:<20} {error:.1e}" for name, error in self.errors.items()),
            f"elman      {self._time(ELMAN)}; engine {self._runs()}",
            f"plain loop {self._time(LOOP)}",
            f"ratio      {self.ratio.median:.2f} times as fast "
            f"({self.ratio.q1:.2f} to {self.ratio.q3:.2f})",
        ]
        if self.flop:
            lines.append(f"products   {self.gflops:.1f} GFLOP/s")
        if self.draws:
            lines.append("beware     its random numbers are expected values here, as in eval()")
        if text := describe_waiting(self.waited):
            lines.append(f"beware     {text}")
        return "\n".join(lines)

    def _runs(self) -> str:
        return self.engine + (f", schedule {self.schedule}" if self.schedule else "")

    def _time(self, name: str) -> str:
        """Microseconds per step, with quartiles."""
        time = self.seconds[name]
        median, q1, q3 = (value / self.steps * 1e6 for value in (time.median, time.q1, time.q3))
        return f"{median:8.1f} µs a step ({q1:.1f} to {q3:.1f})"


def measure(
    cell: Cell | nn.Module | type[nn.Module],
    input_size: int | None = None,
    hidden_size: int = 128,
    *,
    steps: int = 100,
    batch: int = 32,
    dtype: str = "float32",
    training: bool = True,
    engine: str = "auto",
    seconds: float = 2.0,
    **dims: Any,
) -> Measurement:
    """Compare a cell with its plain loop: the formula, step by step, in torch's operators; or a
    step module in those, by :class:`elman.Loop`, with its own loop.

    First both must agree with the loop in float64, in outputs, last states and every gradient. Then
    they are timed in alternating rounds, in this process, on the CPU. ``elman bench file.py:cell``
    does the same. Random numbers inside a cell are replaced by their
    expected values, as in ``eval()``: a training step takes longer.

    Args:
        cell: the cell to time; or a module of one step, as ``Loop`` takes it, with states [B, H],
            or its class, which is called with the two sizes.
        input_size, hidden_size: as for :class:`elman.Recurrent`; input_size defaults to
            hidden_size.
        steps, batch: T and B.
        dtype: of the computation.
        training: time forward and backward, with all gradients; otherwise the forward alone.
        engine: a name, or ``auto``.
        seconds: duration of the timing.
        dims: further arguments of :class:`elman.Recurrent`: sizes of other dims, options of the
            cell, constants.

    Raises:
        InputError: an argument is not a cell, size or dtype.
        VerifyError: elman disagrees with the loop: a bug in elman.
        EngineError: the named engine cannot run this; the text says why.
        StepError: a step module cannot be read as a formula; the text says why.

    Example:
        >>> measured = elman.measure(elman.cells.mgu, 4, 8, steps=5, batch=2, seconds=0.01)
        >>> sorted(measured.errors)
        ['gradient of Rf', ..., 'gradient of x', 'last h', 'output']
        >>> measured.ratio.median > 0
        True
    """
    _check(cell, steps, batch, dtype)
    check_flag("training", training)
    check_number("seconds", seconds, most=DAY_S)
    size = hidden_size if input_size is None else input_size
    number_type: torch.dtype = getattr(torch, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if isinstance(cell, Cell):
            net, plain = (
                Recurrent(cell, size, hidden_size, engine=name, **dims).to(number_type).eval()
                for name in (engine, "reference")
            )
            plain.load_state_dict(net.state_dict())
            pairing = Pairing(net, plain, steps, batch, training)
        elif dims:
            raise InputError(f"a step module takes no {', '.join(dims)}")
        else:
            sizes = size, hidden_size
            pairing = StepPairing(cell, engine, sizes, steps, batch, number_type, training)
    errors, compared = _check_agreement(pairing, dtype)
    times, share = _time(pairing, seconds)
    ran, of_cell = pairing.ran(), pairing if isinstance(pairing, Pairing) else None
    return Measurement(
        cell=pairing.name,
        sizes=pairing.dims,
        steps=steps,
        batch=batch,
        dtype=dtype,
        threads=torch.get_num_threads(),
        training=training,
        seconds={name: quartiles(samples) for name, samples in times.items()},
        ratio=ratios(times, LOOP)[ELMAN],
        errors=errors,
        compared=compared,
        engine=ran["engine"],
        schedule=ran["schedule"] or "",
        waited=share,
        draws=bool(of_cell) and any(v.op == "draw" for v in of_cell.cell.graph.walk()),
        flop=steps * batch * _products(of_cell, dtype) if of_cell else 0,
    )


def _check(cell: Any, steps: Any, batch: Any, dtype: Any) -> None:
    """Raise InputError for what cannot be measured."""
    kind = cell if isinstance(cell, type) else type(cell)
    is_step = issubclass(kind, nn.Module) and not issubclass(kind, nn.RNNBase)
    if not (isinstance(cell, Cell) or is_step):
        raise InputError(f"measure takes a cell or a step module, not {kind.__name__}")
    check_size("steps", steps)
    check_size("batch", batch)
    kind = getattr(torch, check_text("dtype", dtype, 'dtype="float32"'), None)
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise InputError(f"torch computes in no dtype {dtype!r}: float32, float64 or bfloat16")


def _time(pairing: Pairing | StepPairing, seconds: float) -> tuple[dict[str, list[float]], float]:
    """Time both in alternating rounds; also the share of the time without a core."""
    waiting = Waiting()
    times = time_interleaved({ELMAN: pairing.fused, LOOP: pairing.loop}, seconds, ROUNDS)
    return times, waiting.share()


def _products(pairing: Pairing, dtype: str) -> int:
    """Operations in the products of one step of one sample, none of them computed again."""
    cell, training = pairing.cell, pairing.training
    wants = cell.differentiated if training else frozenset[str]()
    sizes = tuple(sorted(pairing.dims.items()))
    spec = Spec(sizes, dtype, "cpu", wants, training, PlanOptions("save"))
    plan = program(compiler.pair_of(cell), spec)
    return cell.batch_heads * (forward_work(plan).products + backward_work(plan).products)


def _check_agreement(pairing: Pairing | StepPairing, dtype: str) -> tuple[dict[str, float], int]:
    """Compare with the loop in float64: the relative error of each result, and the number of steps:
    few where a formula amplifies rounding, or has thresholds. Raises VerifyError: elman computes
    something else."""
    steps = len(pairing.dy[0])
    for compared in dict.fromkeys((steps, min(SHORT, steps))):
        part = pairing.first(compared)
        expected, rounded, actual = part.double(), part.loop(), part.fused()
        reason = disagreement(actual, expected, dtype, compared, [rounded])
        if reason is None:
            return {name: _error(actual[name], value) for name, value in expected.items()}, compared
    raise VerifyError(f"{pairing.name}: elman disagrees with its plain loop: {reason}")


def _error(actual: Tensor, expected: Tensor) -> float:
    """Relative root mean square error."""
    off = float(vector_norm(actual.double() - expected.double()))
    return off / max(float(vector_norm(expected.double())), 1e-30)
