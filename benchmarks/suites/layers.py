"""Suites ``layers`` and ``streams``: what torch.nn's layers do beside dense batches.

The kind of a case says which: packed sequences, stacks, heads, steps, transforms. Contestants
compute the same: outputs, last states, all gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import elman.nn
from benchmarks.cases import OURS, Case, Effort, KindCase, Suite, Way, sized
from benchmarks.contestants import TRAIN
from benchmarks.measures.training import measure_steps
from benchmarks.peers.remote import remote
from benchmarks.problem import Contestant, Problem, Results, draw, gradients, trained
from benchmarks.users import USER
from benchmarks.worker import PEAK, busy_share

LAYERED = ("elman-lengths", "elman-reference", "loop")  # beside torch, elman and elman-c
SHORTEST = 0.2  # of T: lengths are drawn from there to T
_STACK = {"num_layers": 2, "bidirectional": True}
_KINDS: dict[str, Any] = {"stacked": _STACK, "stacked packed": _STACK}
_UNCOUNTED = ("penalty", "samples", "stream", "acting")  # products
Module = Callable[..., Any]


def draw_layers(case: KindCase, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as torch draws them."""
    directions = 2 if "stacked" in case.kind else 1
    sizes = (case.T, case.B, case.input_size), (case.T, case.B, case.H * directions)
    weights, (x, dy) = draw(lambda: _module(case, nn), case, seed, *sizes)
    rows = int(_lengths(case).sum()) if "packed" in case.kind else case.T * case.B
    return Problem(case, x, dy, weights, 0 if case.kind in _UNCOUNTED else rows)


def _lengths(case: KindCase) -> Tensor:
    """Lengths uniform between ``SHORTEST`` of T and T, longest first; the longest is T."""
    source = torch.Generator().manual_seed(case.B)
    lengths = torch.randint(int(SHORTEST * case.T), case.T + 1, (case.B,), generator=source)
    lengths[0] = case.T
    return lengths.sort(descending=True).values


def _module(case: KindCase, library: Any, **options: Any) -> nn.Module:
    """A layer of torch's, or of elman's with an engine."""
    module: nn.Module = getattr(library, case.cell.upper())(
        case.input_size, case.H, **_KINDS.get(case.kind, {}), **options
    )
    return module


def layered(name: str, problem: Problem) -> Contestant | str:
    """A contestant: ``torch``, ``elman``, ``elman-c``, and what a kind adds.

    ``elman-lengths``: padded, with ``lengths=``. ``loop``: elman's module, called for each sample.
    """
    case: Any = problem.case
    engine = name.removeprefix("elman-") if name in ("elman-c", "elman-reference") else "auto"
    options = {} if name == "torch" else {"engine": engine}
    module = _module(case, nn if name == "torch" else elman.nn, **options)
    module.to(problem.x.dtype).load_state_dict(dict(problem.weights))
    facts = dict if name == "torch" else partial(elman.nn.choices, module)
    if case.kind == "samples":
        names = tuple(dict(module.named_parameters()))
        per_sample = (_one_by_one if name in ("torch", "loop") else _mapped)(module, problem.x)
        return Contestant(per_sample, lambda: gradients(names, per_sample()), names, facts)
    if case.kind == "acting":
        act = partial(_acted, module, problem.x)
        return Contestant(act, lambda: dict(zip(("output", "last"), act(), strict=True)), (), facts)
    x = problem.x.clone().requires_grad_()
    leaves = {"x": x, **dict(module.named_parameters())}
    call = _CALLS[case.kind](case, module, problem.dy, name)

    def name_of(*outputs: Tensor) -> Results:
        return {f"output {k}": value.detach() for k, value in enumerate(outputs)}

    return trained(lambda: call(x), leaves, facts, name_of)


def _states(last: Any) -> tuple[Tensor, ...]:
    return tuple(last) if isinstance(last, tuple) else (last,)


def _packed(case: KindCase, module: Module, dy: Tensor, name: str) -> Any:
    """Packed rows in and out; or a padded batch with its lengths."""
    lengths = _lengths(case)
    d_rows = pack_padded_sequence(dy, lengths).data
    d_padded = pad_packed_sequence(pack_padded_sequence(dy, lengths))[0]

    def call(x: Tensor) -> Any:
        if name == "elman-lengths":
            padded, last = module(x, lengths=lengths)
            rows = pack_padded_sequence(padded.detach(), lengths).data
            return (rows, *_states(last)), padded, d_padded
        output, last = module(pack_padded_sequence(x, lengths))
        return (output.data, *_states(last)), output.data, d_rows

    return call


def _dense(case: KindCase, module: Module, dy: Tensor, name: str) -> Any:
    forward = partial(_stepped, module) if case.kind == "stream" else module

    def call(x: Tensor) -> Any:
        output, last = forward(x)
        return (output, *_states(last)), output, dy

    return call


def _stepped(module: Module, x: Tensor) -> tuple[Tensor, Any]:
    """Run one call of the layer per step, as character models and agents do."""
    outputs: list[Tensor] = []
    last = None
    for row in x.split(1):
        output, last = module(row, last)
        outputs.append(output)
    return torch.cat(outputs), last


def _acted(module: Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Run one call per step without gradients: outputs and last states."""
    with torch.no_grad():
        output, last = _stepped(module, x)
    return output, torch.cat(_states(last))


def _penalty(case: KindCase, module: Module, dy: Tensor, name: str) -> Any:
    """The gradient of a loss plus the squared norm of its gradient by x."""

    def call(x: Tensor) -> Any:
        output, _ = module(x)
        loss = (output * dy).sum()
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        return (output, dx), loss + dx.square().sum(), None

    return call


def _loss(module: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The squared norm of one sequence's output, of parameters and x [T, I]."""

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output, _ = functional_call(module, parameters, (x.unsqueeze(1),))
        return output.square().sum()

    return loss


def _mapped(module: nn.Module, x: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Gradients of every sample: ``vmap(grad(loss))``."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    gradients = vmap(grad(_loss(module)), in_dims=(None, 1))
    return lambda: tuple(gradients(parameters, x).values())


def _one_by_one(module: nn.Module, x: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Gradients of every sample by a loop over samples."""
    parameters = list(module.parameters())

    def run() -> tuple[Tensor, ...]:
        by_sample: list[tuple[Tensor, ...]] = []
        for sample in x.split(1, 1):
            output, _ = module(sample)
            by_sample.append(torch.autograd.grad(output.square().sum(), parameters))
        return tuple(torch.stack(values) for values in zip(*by_sample, strict=True))

    return run


_CALLS: dict[str, Callable[[KindCase, Module, Tensor, str], Any]] = {
    "packed": _packed,
    "stacked packed": _packed,
    "stacked": _dense,
    "beside": _dense,
    "stream": _dense,
    "penalty": _penalty,
}


def twice(name: str, problem: Problem) -> Contestant | str:
    """Two runs at once, in two processes on the same cores; one in float64, which judges them."""
    if problem.x.dtype != torch.float32:
        return layered(name, problem)
    return remote(name, replace(problem, case=replace(problem.case, measure=WORK)), 2)


def measure_twice(case: KindCase, effort: Effort) -> dict[str, Any]:
    """Measure as :func:`measure_steps`; both runs take each other's cores, as they are meant to, so
    that other programs are looked for before and after."""
    before = busy_share()
    return {**measure_steps(case, effort), "waited": max(before, busy_share())}


WORK = Way("layers", measure_steps, draw_layers, layered)
TWICE = Way("layers", measure_twice, draw_layers, twice)


_QUICK = ("gru packed 100,32,256", "gru stream 16,8,64")
_NOT_SLOWER = 0.97


def _layers(name: str, ratio: float | None, *peers: str) -> Case:
    """A training step, or a gradient, of torch's layer and of elman's; the kind is in the name."""
    kind = " ".join(name.split()[1:-1])
    measure = {"beside": TWICE, "heads": USER}.get(kind, WORK)
    names = ("torch", OURS, *peers)
    quick = name in _QUICK
    return sized(name, measure, *names, of=KindCase, kind=kind, ratio=ratio, quick=quick)


LAYERS = Suite(
    "layers",
    "How fast are packed sequences, stacks, heads, steps and transforms, compared with torch.nn?",
    (
        PEAK,
        _layers("gru packed 100,32,256", 2.5, "elman-lengths"),
        _layers("lstm packed 100,32,256", 1.5, "elman-lengths"),
        _layers("gru stacked packed 100,32,256", None, "elman-lengths"),
        _layers("gru stacked 100,32,256", 2.5),
        _layers("lstm stacked 100,32,256", None),
        _layers("gru heads 100,32,256", None, "elman-c"),  # 16, beside as many layers of torch's
        sized("gru 100,32,256", TRAIN, "torch", OURS, "elman-c"),  # one head of the same units
        _layers("gru samples 50,32,64", 5.0, "loop"),
        _layers("lstm samples 50,32,64", None, "loop"),
        _layers("gru penalty 50,32,64", None, "elman-reference"),
        _layers("lstm penalty 50,32,64", None, "elman-reference"),
    ),
    seconds=3.0,
)

STREAMS = Suite(
    "streams",
    "Is a call per step, or a run that shares its cores with another, ever slower than torch.nn?",
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
