"""A decoder and its cross entropy: a training step of both, by all who have them.

Of a case, B are the rows, H is their size and I the vocabulary; T is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import OURS, Case
from benchmarks.problem import Contestant, Problem, trained

_FEW = 8  # rows and classes of the step before the one whose memory is measured
Loss = Callable[[Tensor, Tensor], Tensor]


def draw_decoder(case: Case, seed: int = 0) -> Problem:
    """Draw x [B, H] from N(0, 1), targets [B] alike, weights as ``nn.Linear`` does."""
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear = nn.Linear(case.H, case.I)
        x = torch.randn(case.B, case.H, dtype=dtype)
        targets = torch.randint(case.I, (case.B,))
    weights = {name: w.detach().to(dtype) for name, w in linear.state_dict().items()}
    return Problem(case, x, targets, weights, case.B)


def decoded(name: str, problem: Problem) -> Contestant | str:
    """A contestant of :data:`DECODERS`, or why it is absent."""
    weights = {key: w.clone().requires_grad_() for key, w in problem.weights.items()}
    loss = DECODERS[name](problem, weights)
    if isinstance(loss, str):
        return loss
    x, targets = problem.x.clone().requires_grad_(), problem.dy.long()

    def forward() -> tuple[tuple[Tensor], Tensor, None]:
        value = loss(x, targets)
        return (value,), value, None

    return trained(forward, {"x": x, **weights}, name=lambda value: {"output": value.detach()})


def few_rows(problem: Problem) -> Problem:
    """The problem of the first few rows and classes."""
    weights = {name: w[:_FEW] for name, w in problem.weights.items()}
    case = replace(problem.case, B=_FEW, I=_FEW)
    return Problem(case, problem.x[:_FEW], problem.dy[:_FEW] % _FEW, weights, _FEW)


def _torch(problem: Problem, weights: dict[str, Tensor]) -> Loss:
    """``nn.Linear`` and ``nn.CrossEntropyLoss``."""
    return lambda x, targets: F.cross_entropy(F.linear(x, *weights.values()), targets)


def _torch_chunks(problem: Problem, weights: dict[str, Tensor]) -> Loss | str:
    """torch's own operation for both, in chunks."""
    chunked: Any = getattr(F, "linear_cross_entropy", None)
    options: Any = getattr(nn, "LinearCrossEntropyOptions", None)
    if chunked is None or options is None:
        return f"torch {torch.__version__} has no linear_cross_entropy in chunks"
    weight, bias = weights.values()
    return lambda x, targets: chunked(x, weight, targets, linear_bias=bias, options=options())


def _elman(problem: Problem, weights: dict[str, Tensor], engine: str = "auto") -> Loss:
    """elman's, in its kernel or in torch's operations."""
    case = problem.case
    decoder = elman.nn.LinearCrossEntropyLoss(case.H, case.I, bias=True, dtype=problem.x.dtype)
    parameters = {f"linear.{name}": value for name, value in weights.items()}

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        with elman.nn.using(engine=engine):
            return torch.func.functional_call(decoder, parameters, (x, targets))

    return loss


DECODERS: dict[str, Callable[[Problem, dict[str, Tensor]], Loss | str]] = {
    "torch": _torch,
    "torch-chunks": _torch_chunks,
    OURS: _elman,
    f"{OURS}-reference": partial(_elman, engine="reference"),
}
