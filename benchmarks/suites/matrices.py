"""Suite ``matrices``: layers whose state is a matrix, beside a loop and the chunkwise form.

B counts the samples of all heads, I rows of a state, H its columns. The chunkwise form runs eager,
and compiled by torch. Kind ``stream``: a call for each step, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import elman.nn
from benchmarks.cases import OURS, KindCase, Suite, Way, sized
from benchmarks.measures.training import measure_steps
from benchmarks.peers.matrix_forms import FORMS
from benchmarks.problem import Contestant, Problem, trained
from benchmarks.worker import PEAK

FORMS_IN_TORCH = LOOP, CHUNKS, COMPILED = "loop", "chunks", "compiled"
ENGINE = f"{OURS}-c"
BACKEND = "inductor"  # of torch.compile
_SEQUENTIAL = "m2rnn"  # no chunkwise form is known; its products are counted


def draw_matrices(case: KindCase, seed: int = 0) -> Problem:
    """The leaves of a cell; a matrix of weights multiplies each row of each sample's matrix."""
    source, dtype = torch.Generator().manual_seed(seed), getattr(torch, case.dtype)
    leaves = FORMS[case.cell].draw(case.T, case.B, case.input_size, case.H, source)
    x, *others = [leaf.to(dtype) for leaf in leaves.values()]
    dy = torch.randn(case.T, case.B, case.H, generator=source).to(dtype)
    rows = case.T * case.B * case.input_size if case.cell == _SEQUENTIAL else 0
    weights = dict(zip([*leaves][1:], others, strict=True))
    return Problem(case, x, dy, weights, rows, once=frozenset(("f",)))


def enter_matrices(name: str, problem: Problem) -> Contestant | str:
    """One in torch, or elman's cell; or why there is none."""
    case, forms = problem.case, FORMS[problem.case.cell]
    first, *names = forms.names
    leaves = {first: problem.x, **{key: problem.weights[key] for key in names}}
    if name.startswith(OURS):
        return _elman(name, problem, leaves)
    if name == LOOP:
        return _contestant(problem, leaves, lambda row: forms.loop(**row), dict)
    if (chunks := forms.chunks) is None:
        return f"{case.cell} has no chunkwise form"
    body = chunks.body
    if name == COMPILED:
        body = torch.compile(body, dynamic=False, backend=BACKEND)
    return _contestant(problem, leaves, lambda row: chunks.run(body, **row), dict)


def _elman(name: str, problem: Problem, leaves: dict[str, Tensor]) -> Contestant:
    case: Any = problem.case
    forms = FORMS[case.cell]
    sizes = (case.H, case.input_size) if forms.transposed else (case.input_size, case.H)
    engine = "auto" if name == OURS else name.removeprefix(f"{OURS}-")
    net = elman.nn.Recurrent(getattr(elman.cells, case.cell), *sizes, engine=engine)

    def call(row: dict[str, Tensor]) -> Tensor:
        fixed = row.get(forms.static)
        if fixed is not None and fixed.dim() == 2:  # one matrix of all samples
            fixed = fixed.expand(case.B, *fixed.shape)
        inputs = tuple(leaf for key, leaf in row.items() if key != forms.static)
        if case.kind != "stream":
            return net(inputs, static=fixed)[0]
        state, outputs = None, list[Tensor]()
        for step in zip(*inputs, strict=True):
            output, state = net.step(step, state, static=fixed)
            outputs.append(output)
        return torch.stack(outputs)

    return _contestant(problem, leaves, call, partial(elman.nn.choices, net))


def _contestant(
    problem: Problem,
    leaves: dict[str, Tensor],
    call: Callable[[dict[str, Tensor]], Tensor],
    facts: Callable[[], dict[str, object]],
) -> Contestant:
    if not problem.case.measure.backward:

        def forward() -> Tensor:
            with torch.no_grad():
                return call(leaves)

        return Contestant(forward, lambda: {"output": forward()}, (), facts)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}

    def train() -> tuple[tuple[Tensor], Tensor, Tensor]:
        y = call(leaves)
        return (y,), y, problem.dy

    return trained(train, leaves, facts, lambda y: {"output": y.detach()})


TRAIN = Way("matrices", measure_steps, draw_matrices, enter_matrices, dense=True)
STREAM = Way("matrices", measure_steps, draw_matrices, enter_matrices, backward=False)


def _case(sizes: str, rows: int, *names: str, **options: object) -> KindCase:
    """A training step of a cell; ``rows`` of each state."""
    cell, _, _ = sizes.partition(" ")
    names = names or (LOOP, OURS, CHUNKS, COMPILED)
    return sized(sizes, TRAIN, *names, of=KindCase, cell=cell, I=rows, **options)


MATRICES = Suite(
    "matrices",
    "How fast are layers whose state is a matrix, beside a loop and the chunkwise parallel form?",
    (
        PEAK,
        _case("gated_delta_net 1024,32,64", 64, ratio=60.0),
        _case("gated_delta_net 4096,4,64", 64, ratio=60.0),
        _case("gated_delta_net 256,32,128", 128, ratio=60.0),
        _case("gated_delta_net 256,6,512", 256, ratio=10.0),  # heads as its layer has them
        _case("gated_delta_net 256,4,64", 64, LOOP, OURS, CHUNKS, quick=True),
        _case("mlstm 1024,32,64", 64, ratio=10.0),
        _case("mlstm 256,4,512", 256, ratio=10.0),  # heads of xLSTM-7B
        _case("rwkv7 1024,32,64", 64, ratio=10.0),
        _case("gla 1024,8,256", 128, ratio=10.0),  # heads of GLA-340M
        _case("mamba2 1024,32,64", 128, ratio=10.0),
        _case("m2rnn 512,32,64", 64, LOOP, OURS),
        sized(
            "gated_delta_net stream 16,32,128",
            *(STREAM, LOOP, OURS, ENGINE),
            of=KindCase,
            kind="stream",
            I=128,
            ratio=5.0,
            quick=True,
        ),
    ),
    seconds=2.0,
    rounds=3,
)
