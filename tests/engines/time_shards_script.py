"""What each of several processes computes with steps of its own, beside one process with all of
them: a JSON list of [case, largest difference]. Words: rank, number of processes, where to meet,
and names of cells."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed as dist
from torch.utils._pytree import tree_leaves

import elman
from elman import cells
from elman.engines.deer import kernel as deer
from elman.engines.deer import solvers
from elman.errors import ElmanError
from library_sizes import DIMS, VECTORS

F64 = torch.float64
EDGES = (0, 7, 8, 41)  # of the processes' steps


class Process:
    """One process of some."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.first, self.last = rank, rank == 0, rank == count - 1
        self.rows = slice(EDGES[rank], EDGES[rank + 1])

    def own(self, values: Any) -> list[torch.Tensor]:
        """The own steps as new leaves."""
        return [value.detach()[self.rows].clone().requires_grad_() for value in values]

    def off(self, got: torch.Tensor | None, want: torch.Tensor | None) -> float:
        """The difference of a gradient that is summed over the processes."""
        if want is None:
            return 0.0
        total = torch.zeros_like(want) if got is None else got.clone()
        dist.all_reduce(total)
        return float((total - want).abs().max() / (1 + want.abs().max()))

    def ends_of(self, net: Any, last: torch.Tensor) -> torch.Tensor:
        """1 where a last state is this process's, of last states [layers · directions, B, ..]."""
        flags = torch.full((last.shape[0], *[1] * (last.dim() - 1)), float(self.last), dtype=F64)
        if net.bidirectional:
            flags[1::2] = float(self.first)
        return flags

    def of_module(self, net: Any, engine: str = "deer", **options: Any) -> float:
        """The largest difference of outputs, last states and gradients."""
        torch.manual_seed(3)
        T, signature = EDGES[-1], net.runtime.signature
        x = [torch.randn(T, 2, *s, dtype=F64) for s in net.runtime.input_sizes]
        x = [x[0].requires_grad_(), *[value.abs().requires_grad_() for value in x[1:]]]  # times
        static = [torch.randn(2, *s, dtype=F64) for s in net.runtime.static_sizes]
        h = [torch.randn(signature.lead, 2, *s, dtype=F64) / 3 for _, s in signature.states]
        h = [state.requires_grad_() for state in h]
        start = tuple(h) if len(h) > 1 else h[0]
        if static:
            options["static"] = tuple(static) if len(static) > 1 else static[0]
        steps = {name: v for name, v in options.items() if name in ("reset", "mask")}
        with elman.using(engine="reference"):
            out, last = net(tuple(x) if len(x) > 1 else x[0], start, **options)
        outs, lasts = tree_leaves(out), tree_leaves(last)
        weights = [[torch.randn_like(v) for v in group] for group in (outs, lasts)]

        def loss(outs: Any, lasts: Any, rows: slice, flags: Any) -> Any:
            of_steps = sum((a * b[rows]).sum() for a, b in zip(outs, weights[0], strict=True))
            of_ends = zip(lasts, weights[1], flags, strict=True)
            return of_steps + sum((a * b * c).sum() for a, b, c in of_ends)

        leaves = [*h, *net.parameters()]
        want = torch.autograd.grad(
            loss(outs, lasts, slice(None), [1.0] * len(lasts)), [*x, *leaves], allow_unused=True
        )
        part = self.own(x)
        with elman.shard_time(), elman.using(engine=engine):
            mine = {name: value[self.rows] for name, value in steps.items()}
            out, last = net(tuple(part) if len(part) > 1 else part[0], start, **options | mine)
        got_outs, got_lasts = tree_leaves(out), tree_leaves(last)
        flags = [self.ends_of(net, last) for last in lasts]
        total = loss(got_outs, got_lasts, self.rows, flags)
        got = torch.autograd.grad(total, [*part, *leaves], allow_unused=True)
        pairs = [(a, b[self.rows]) for a, b in zip(got_outs, outs, strict=True)]
        pairs += [(a * c, b * c) for a, b, c in zip(got_lasts, lasts, flags, strict=True)]
        pairs += [(a, b[self.rows]) for a, b in zip(got, want[: len(x)]) if b is not None]
        worst = max(float((a - b).abs().max()) for a, b in pairs)
        further = zip(got[len(x) :], want[len(x) :], strict=True)
        return max(worst, *[self.off(a, b) for a, b in further])

    def of_function(self, run: Any, arguments: dict[str, torch.Tensor], shared: set[str]) -> float:
        """The same of a function of tensors [T, …], ``shared`` ones but for the steps."""
        named = {name: value.requires_grad_() for name, value in arguments.items()}
        want = run(**named)
        weight = torch.randn_like(want)
        d_want = torch.autograd.grad((want * weight).sum(), [*named.values()])
        mine = {k: v if k in shared else v[self.rows] for k, v in named.items()}
        with elman.shard_time():
            got = run(**mine)
        d_got = torch.autograd.grad((got * weight[self.rows]).sum(), [*named.values()])
        off = float((got - want[self.rows]).abs().max())
        return max(off, *[self.off(a, b) for a, b in zip(d_got, d_want, strict=True)])


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I]")
def no_recurrence(x, h, W):
    """No step reads the state."""
    return W @ x


@contextmanager
def no_solver() -> Iterator[None]:
    """No solver comes to an end."""
    methods = dict(solvers.METHODS)
    solvers.METHODS.update({name: solvers.Method(0) for name in methods})
    try:
        yield
    finally:
        solvers.METHODS.update(methods)


def refused(call: Any) -> str:
    """What a call says that is refused."""
    try:
        with elman.shard_time():
            call()
    except ElmanError as error:
        return str(error).splitlines()[0]
    return "nothing"


def cases(process: Process, names: list[str]) -> Iterator[tuple[str, float | str]]:
    """Everything that is compared, and what is refused."""
    for cell in VECTORS:
        if cell.name not in names:
            continue
        options: dict[str, Any] = {"input_size": 4, "hidden_size": 6} | DIMS.get(cell.name, {})
        if "mean" in options:
            options["mean"] = torch.linspace(-1, 1, options["input_size"])
        torch.manual_seed(1)
        net = elman.Recurrent(cell, **options).double()
        for engine in ("deer", "scan-backward"):
            yield f"{cell.name} {engine}", process.of_module(net, engine)
    torch.manual_seed(1)
    yield "layers", process.of_module(elman.LSTM(4, 6, 2).double())
    both = elman.GRU(4, 6, 2, bidirectional=True).double()
    yield "directions", process.of_module(both)
    T = EDGES[-1]
    net = elman.Recurrent(cells.gru, 4, 6).double()
    reset = torch.rand(T, 2) < 0.1
    reset[list(EDGES[:-1]), 0] = True
    yield "reset", process.of_module(net, reset=reset)
    yield "reset both ways", process.of_module(both, reset=reset)
    yield "no recurrence", process.of_module(elman.Recurrent(no_recurrence, 4, 6).double())
    yield "mask", process.of_module(net, mask=torch.rand(T, 2) < 0.8)
    with no_solver():
        yield "in turn", process.of_module(net)
    deer.IN_CACHE = 1 << 12  # of kernels that are made from now on: windows of a few steps
    torch.manual_seed(1)
    net = elman.Recurrent(cells.lstm, 4, 5).double()
    yield "windows", process.of_module(net)
    factors = {"a": torch.rand(T, 5, dtype=F64), "b": torch.randn(T, 5, dtype=F64)}
    start = {"y0": torch.randn(5, dtype=F64)}
    yield "linear_scan", process.of_function(elman.linear_scan, factors | start, {"y0"})
    factors["a"] = torch.randn(T, 2, 3, 3, dtype=F64) / 2
    factors["b"], start["y0"] = (torch.randn(*n, 2, 3, dtype=F64) for n in ((T,), ()))
    yield "matrices", process.of_function(elman.linear_scan, factors | start, {"y0"})
    W = {"W": torch.randn(3, 3, dtype=F64) / 2}

    def solve(x: torch.Tensor, W: torch.Tensor, y0: torch.Tensor) -> torch.Tensor:
        return elman.deer(lambda y, x: torch.tanh(y @ W + x), y0, x)

    yield "deer", process.of_function(solve, {"x": factors["b"]} | W | start, {"W", "y0"})
    scale = torch.ones(T, 1, 1, dtype=F64)
    scale[: EDGES[1]] = 1e4  # of the first process alone
    reports: list[Any] = []
    with elman.shard_time():
        x = (factors["b"] * scale)[process.rows].detach()
        y0 = start["y0"].detach()
        elman.deer(lambda y, x: 0.9 * torch.sin(y) + x, y0, x, report=reports.append)
    yield "apart", float(reports[0].solver != "newton")
    with no_solver():
        yield (
            "deer in turn",
            process.of_function(solve, {"x": factors["b"]} | W | start, {"W", "y0"}),
        )
    x = torch.randn(4, 2, 4)
    yield "engine aten", refused(lambda: elman.GRU(4, 6, engine="aten")(x))
    yield "step", refused(lambda: elman.GRU(4, 6).step(x[0]))
    yield "stream", refused(lambda: elman.Stream(elman.GRU(4, 6))(x))
    strided = elman.layers.Strided("gru", 4, 6, strides=(1, 3))
    yield "strided", refused(lambda: strided(x))
    yield "engine c", refused(lambda: elman.GRU(4, 6, engine="c")(x))
    yield "lengths", refused(lambda: elman.GRU(4, 6)(x, lengths=[4, 2]))
    yield "checkpoint", refused(lambda: elman.GRU(4, 6, plan=elman.PlanOptions(checkpoint=2))(x))
    net = elman.GRU(4, 6)
    yield "transform", refused(lambda: torch.vmap(lambda x: net(x)[0])(torch.randn(3, 4, 2, 4)))
    compiled = torch.compile(net, backend="eager")
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        yield "compiled", refused(lambda: compiled(x)) + "".join(f"; {w.message}" for w in log)
    with elman.shard_time():
        out = net(x.requires_grad_())[0]
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    yield "second", refused(lambda: torch.autograd.grad(out.sum(), x, create_graph=True))
    with elman.shard_time():
        y = elman.linear_scan(torch.sigmoid(x), torch.tanh(x))
    yield "second scan", refused(lambda: torch.autograd.grad(y.sum(), x, create_graph=True))


def main() -> None:
    """Print the cases of one process."""
    rank, count, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=count)
    sys.stdout.write(json.dumps([*cases(Process(rank, count), sys.argv[4:])]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
