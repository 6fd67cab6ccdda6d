"""What tests of several rooms share: random cases, runs by engine, and the one tolerance table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any

import pytest
import torch

from elman import cells, compiler
from elman.engines import registry
from elman.engines.base import Engine, Job, Kernel
from elman.engines.c.compilation.isa import detect
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.vjp import leaves_of, vjp
from elman.errors import EngineError
from elman.frontend.cell import Cell
from elman.ir.types import shape_size
from elman.nn.execute.layer import Runner
from elman.tuning.kernels import kernel_of, refusal
from specs import spec_of

# DESIGN, contract "Numbers". Values are O(1); errors of values grow with the root of T.
VALUE = {torch.float32: 1e-5, torch.float64: 1e-11}  # absolute, times sqrt(T)
GRADIENT = {  # relative RMS
    torch.float32: 1e-4,
    torch.float64: 1e-10,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
}
HALF_VALUE = {torch.float16: 2e-3, torch.bfloat16: 5e-3}  # of values too
# Two computations of the same kind side by side, element by element: (relative, absolute).
CLOSE = {  # how much is computed in between -> by dtype
    "step": {torch.float32: (2e-6, 1e-7), torch.float64: (1e-12, 1e-12)},
    "layer": {torch.float32: (1e-4, 1e-5), torch.float64: (1e-10, 1e-10)},
}
DIFFERENCES = 1e-4  # of second derivatives by finite differences in float64, absolute


@dataclass(frozen=True)
class Sizes:
    """The size of a case; further dims of a cell by name in ``more``."""

    T: int
    B: int
    I: int
    H: int
    more: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        more = "".join(f"-{name}{size}" for name, size in self.more)
        return f"T{self.T}-B{self.B}-I{self.I}-H{self.H}{more}"


AWKWARD = [
    Sizes(T=1, B=1, I=1, H=1),
    Sizes(T=7, B=3, I=5, H=13),
    Sizes(T=5, B=1, I=0, H=17),
    Sizes(T=19, B=9, I=31, H=16),
    Sizes(T=4, B=17, I=3, H=33),
]


@dataclass(frozen=True, eq=False)
class Case:
    """Random arguments of a cell, and cotangents of all its results.

    Attributes:
        inputs [T, B, n], states [B, n], weights: by name, in declared order.
        d_output [T, B, n], d_last [B, n]: cotangents.
    """

    cell: Cell
    dims: dict[str, int]
    inputs: dict[str, torch.Tensor]
    states: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    d_output: torch.Tensor
    d_last: dict[str, torch.Tensor]

    @property
    def dtype(self) -> torch.dtype:
        return self.d_output.dtype

    @property
    def T(self) -> int:
        return self.d_output.shape[0]

    def to(self, where: torch.dtype | str) -> Case:
        """The same numbers in another dtype, or on another device."""

        def each(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: value.to(where) for name, value in values.items()}

        return Case(
            self.cell,
            self.dims,
            each(self.inputs),
            each(self.states),
            each(self.weights),
            self.d_output.to(where),
            each(self.d_last),
        )


def random_case(
    cell: Cell, sizes: Sizes, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Case:
    """Draw a case: x ~ N(0, 1), states and biases O(1), matrices with a spectral norm near 1."""
    dims = cell.bind(sizes.I, sizes.H, **dict(sizes.more))
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source, dtype=torch.float64)

    def weight(shape: tuple[int, ...]) -> torch.Tensor:
        return normal(*shape) * (0.7 / math.sqrt(max(1, shape[-1])) if len(shape) == 2 else 0.5)

    output = shape_size(cell.graph.output_shape, dims)
    leaves = compiler.graph_of(cell).states  # what static inputs give is held by states
    states = {s.name: normal(sizes.B, *shape_size(s.shape, dims)) * 0.5 for s in leaves}
    if cell.function is cells.slstm.function:
        states["n"] = states["n"].abs() + 1  # a sum of exponentials, and what is divided by
    if cell.function is cells.rwkv4.function:
        states["den"] = states["den"].abs() + 1  # as there
    case = Case(
        cell,
        dims,
        {x.name: normal(sizes.T, sizes.B, *shape_size(x.shape, dims)) for x in cell.inputs},
        states,
        {w.name: weight(shape_size(w.shape, dims)) for w in cell.weights},
        normal(sizes.T, sizes.B, *output),
        {name: normal(*value.shape) for name, value in states.items()},
    )
    return case.to(dtype)


def job_of(case: Case, **options: Any) -> Job:
    """The job that asks for every gradient of a case; options of Spec override."""
    wants = frozenset((*case.inputs, *case.weights))
    dtype = str(case.dtype).removeprefix("torch.")
    fields = {"dtype": dtype, "device": case.d_output.device.type, "wants": wants, **options}
    return compiler.job(case.cell, spec_of(case.dims.items(), **fields))


def need(engine: str, job: Job) -> None:
    """Skip a test that an engine cannot run, with the engine's own reason."""
    reason = refusal(engine, job)
    if reason is not None:
        pytest.skip(f"{engine}: {reason}")


def need_engine(engine: str) -> None:
    """Skip a test where an engine runs nothing at all, with its own reason."""
    need(engine, job_of(random_case(cells.rnn, Sizes(T=1, B=1, I=1, H=1))))


def need_isa(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels made for an instruction set; skip a test where the machine lacks it."""
    monkeypatch.setenv("ELMAN_ISA", name)
    try:
        detect()
    except EngineError as error:
        pytest.skip(str(error))


def run(cell: Cell, case: Case, engine: str) -> dict[str, torch.Tensor]:
    """Output, last states and every gradient of a case on one engine, through autograd.

    Returns:
        ``out``, ``last h`` …, ``dx``, ``dh``, ``dW`` … by name; a gradient of None is left out.
    """
    assert cell is case.cell, "a case belongs to its cell"
    leaves = {
        name: value.detach().clone().requires_grad_()
        for name, value in (*case.inputs.items(), *case.states.items(), *case.weights.items())
    }

    def picked(names: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(leaves[name] for name in names)

    runner = Runner(cell, case.dims)
    call = Call(picked(case.inputs), picked(case.states), picked(case.weights))
    out, last, _ = run_layer(runner, call, engine)
    (choice,) = runner.choices.values()
    assert choice.engine == engine, "the engine that was asked for has to run"
    pairs = zip((out, *last), (case.d_output, *case.d_last.values()))
    roots, ds = zip(*((value, d) for value, d in pairs if value.requires_grad))
    grads = torch.autograd.grad(roots, list(leaves.values()), ds, allow_unused=True)
    found = {"out": out.detach()}
    found |= {f"last {name}": value.detach() for name, value in zip(case.states, last)}
    found |= {f"d{name}": grad for name, grad in zip(leaves, grads) if grad is not None}
    return found


def run_layer(runner: Runner, call: Call, engine: str) -> Result:
    """Run a call of one layer in one direction, which has no static inputs."""
    flows = [value.requires_grad for value in call.inputs]
    return runner.bind(call, runner.request(call, flows, engine)).run(call)


_judged: dict[object, dict[str, torch.Tensor]] = {}  # the last, of all that ask


def oracle(case: Case) -> dict[str, torch.Tensor]:
    """What engine reference gives in float64 for the very numbers that a case holds.

    Computed once for all schedules, splits and engines that it judges.
    """
    case = case.to(torch.float64)
    digest = sha256()
    for values in (case.inputs, case.states, case.weights, {"": case.d_output}, case.d_last):
        for name, value in values.items():
            digest.update(f"{name} {list(value.shape)}".encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
    key = case.cell, digest.digest(), case.d_output.device
    found = _judged.pop(key, None) or run(case.cell, case, "reference")
    _judged[key] = found
    if len(_judged) > 500:
        del _judged[next(iter(_judged))]
    return {name: value.clone() for name, value in found.items()}


def assert_same(
    name: str, got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, T: int
) -> None:
    """Assert that two results agree within the one table; NaN and infinities in the same places.

    Args:
        name: ``out``, ``last …`` for values, ``d…`` for gradients.
        got, want: the results; ``want`` is the oracle's, usually in float64.
        dtype: of the computation that gave ``got``.
        T: number of steps.
    """
    assert got.shape == want.shape, f"{name}: shape {list(got.shape)}, not {list(want.shape)}"
    a, b = got.detach().double(), want.detach().double()
    finite = b.isfinite()
    assert torch.equal(a.isfinite(), finite), f"{name}: not finite in other places"
    odd, like = a[~finite].nan_to_num(), b[~finite].nan_to_num()
    assert torch.equal(odd, like), f"{name}: NaN and infinities in other places"
    a, b = a[finite], b[finite]
    if not b.numel():
        return
    if name.startswith("d"):
        scale = b.square().mean().sqrt().item()
        error, allowed = (a - b).square().mean().sqrt().item(), GRADIENT[dtype] * scale
        allowed = max(allowed, 1e-3 * GRADIENT[dtype])  # a gradient that is zero but for rounding
        kind = "RMS error"
    elif dtype in HALF_VALUE:
        scale = b.square().mean().sqrt().item()
        error, allowed = (a - b).square().mean().sqrt().item(), HALF_VALUE[dtype] * scale
        kind = "RMS error"
    else:
        error, allowed = (a - b).abs().max().item(), VALUE[dtype] * math.sqrt(T)
        kind = "error"
    assert error <= allowed, f"{name}: {kind} {error:.3g}, at most {allowed:.3g}"


def assert_close(got: Any, want: Any, depth: str = "layer", **options: Any) -> None:
    """Assert that tensors agree element by element, within the table by dtype and depth.

    Args:
        got, want: tensors of the same shape; where dtypes differ, the less exact one judges.
        depth: ``step`` for an op or one step, ``layer`` for all steps and their gradients.
        options: of ``torch.testing.assert_close``.
    """
    dtype = max(got.dtype, want.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    rtol, atol = CLOSE[depth][dtype]
    torch.testing.assert_close(got.to(dtype), want.to(dtype), rtol=rtol, atol=atol, **options)


def assert_all_same(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], dtype: torch.dtype, T: int
) -> None:
    """Assert that all results of two runs agree; a gradient that only one has must be zero."""
    for name in got.keys() ^ want.keys():
        present = got.get(name, want.get(name))
        assert name.startswith("d"), f"{name} is missing"
        assert not present.count_nonzero(), f"{name} is missing, and not zero"
    for name in got.keys() & want.keys():
        assert_same(name, got[name], want[name], dtype, T)


@contextmanager
def forced(engine: str) -> Iterator[None]:
    """Every module runs on one engine, those too that name another: as by ELMAN_FORCE_ENGINE."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("elman.nn.engine_choice"), "_forced", engine)
        yield


class OwnBackwardKernel(Kernel):
    """A correct kernel with its own backward, as compiled engines have: the reference inside.

    It counts calls, fills what it returns beyond the results with saved tensors, and destroys those
    unless it must keep them.
    """

    engine = "c"

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inner = kernel_of(job, "reference")
        self.calls = {"forward": 0, "backward": 0}
        self.kept: list[bool] = []

    def forward(self, call: Call) -> Result:
        """Run the reference without history."""
        self.calls["forward"] += 1
        with torch.no_grad():
            output, last, _ = self._run(call)
            saved = (torch.ones(3),) if self.job.spec.training else ()
        return Result(output, tuple(value.clone() for value in last), saved)

    def _run(self, call: Call) -> Result:
        """The reference, with states of a stack of one layer too."""
        leaves, states = self.job.graph.states, call.states
        flat = [s.reshape(s.shape[s.dim() - 1 - len(v.shape) :]) for s, v in zip(states, leaves)]
        output, last, _ = self.inner.forward(call._replace(states=tuple(flat)))
        return Result(output, tuple(end.reshape(s.shape) for end, s in zip(last, states)))

    def backward(self, call: Call, saved: Any, cotangents: Cotangents, keep: bool) -> Gradients:
        """Differentiate the reference."""
        self.calls["backward"] += 1
        self.kept.append(keep)
        assert torch.equal(saved[0], torch.ones(3)), "the saved tensors were destroyed before"
        if not keep:
            saved[0].data.fill_(float("nan"))
        graph, wants = self.job.graph, self.job.spec.wants
        wanted = wants | {leaf.name for leaf in graph.states}
        needs = [leaf.name in wanted for leaf in graph.leaves]
        leaves = leaves_of(call.tensors, needs)
        with torch.enable_grad():
            result = self._run(call.with_tensors(leaves))
        d_output, d_last = cotangents
        return call.form.gradients(vjp(result.values, leaves, (d_output, *d_last), needs))

    def describe(self):
        """Facts for records."""
        return {"engine": self.engine, "plan": "0123"}


class OwnBackwardEngine(Engine):
    """Stands in for a compiled engine, under its name."""

    name = "c"

    def __init__(self, schedules: tuple[str, ...] = ("",)) -> None:
        self.names = schedules
        self.kernels: list[OwnBackwardKernel] = []

    def supports(self, job: Job) -> str | None:
        return None

    def lacks(self, device: str, dtype: str) -> str | None:
        return None

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        self.kernels.append(OwnBackwardKernel(job))
        return self.kernels[-1]

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        return self.names


def stand_in(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Put an engine in the place of the registered one of its name, for one test."""
    registry.fuses("cpu", "float32")  # known for the whole process, and not by what stands in
    find = registry.find
    monkeypatch.setattr(
        registry, "find", lambda name: engine if name == engine.name else find(name)
    )
    monkeypatch.setattr("elman.tuning.kernels._kernels", {})
