"""Compare elman's run of a step with the ordinary loop: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import elman
from benchmarks.steps.case import Built, Case, Sizes, Tree, build, call_step, floating, plain_loop

Values = dict[str, Tensor]
Runner = Callable[[Tree, Tree], tuple[Tree, Tree]]  # x, state -> outputs, last state
SMALL = (20, 3, Sizes(6, 8))  # T, B and sizes at which values are compared
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SHOWN = 3  # largest errors in a row
LONGEST = 700  # of a refusal's text


class LoopError(Exception):
    """The ordinary loop itself fails."""


def elmans(built: Built, engine: str, through: str) -> Runner:
    """How elman runs a step.

    Args:
        built: the step.
        engine: of elman.
        through: ``case`` (modules by ``elman.Loop``, functions by ``elman.scan``), or ``scan`` for
            all.
    """
    call, step = built.case.call, built.step

    def ordered(carry: Tree, x: Tree) -> tuple[Tree, Tree]:
        y, carry = call_step(call, step, x, carry)
        return carry, y

    if through == "case" and isinstance(step, nn.Module):
        return elman.Loop(step, carry_first=call == "s,x->s,y", engine=engine)
    body = step if call == "s,x->s,y" else ordered

    def scan(x: Tree, state: Tree) -> tuple[Tree, Tree]:
        last, ys = elman.scan(body, state, x, engine=engine)
        return ys, last

    return scan


def loops(built: Built) -> Runner:
    """How Python runs a step."""
    return lambda x, state: plain_loop(built, x, state)


def reals(tree: Tree) -> list[Tensor]:
    """The leaves of a tree that have gradients, complex ones as pairs."""
    leaves = [leaf for leaf in tree_leaves(tree) if floating(leaf)]
    return [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in leaves]


def weighted(tree: Tree, seed: int = 1) -> Tensor:
    """A sum of all leaves, with random weights."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for leaf in reals(tree):
        weights = torch.randn(leaf.shape, generator=generator).to(leaf)
        total = total + (leaf * weights).sum().double()
    return total


def values(built: Built, run: Runner) -> Values:
    """Outputs, last states and all gradients of a run, by name."""
    outputs, last = run(built.x, built.state)
    loss = weighted((outputs, last))
    if loss.requires_grad:
        loss.backward()
    found: Values = {}
    for kind, tree in (("output", outputs), ("last", last)):
        for i, leaf in enumerate(tree_leaves(tree)):
            found[f"{kind} {i}"] = leaf.detach()
    for name, leaf in leaves(built):
        found[f"d {name}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return found


def leaves(built: Built) -> Iterator[tuple[str, Tensor]]:
    """What has a gradient, by name."""
    for kind, tree in (("x", built.x), ("state", built.state), ("static", built.statics)):
        for i, leaf in enumerate(tree_leaves(tree)):
            if floating(leaf):
                yield f"{kind} {i}", leaf
    for name, parameter in built.module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def errors(found: Values, wanted: Values) -> dict[str, float]:
    """The largest difference of each value, relative to the largest of what is wanted.

    A value that is missing, of another shape or not finite where it should be is infinitely off.
    """
    return {name: error(found.get(name), value) for name, value in wanted.items()}


def error(found: Tensor | None, wanted: Tensor) -> float:
    """The largest difference, relative to the largest of what is wanted."""
    if found is None or found.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    found, wanted = found.to(wide), wanted.to(wide)
    difference = (found - wanted).abs().max().item()
    largest = wanted.abs().max().item()
    off = difference / largest if largest else difference
    return off if off == off else float("inf")


def largest(all_errors: dict[str, float]) -> dict[str, float]:
    """The largest errors, by name."""
    ranked = sorted(all_errors.items(), key=lambda item: -item[1])
    return {name: float(f"{value:.2g}") for name, value in ranked[:SHOWN]}


def reason(error: BaseException) -> str:
    """An error in a line, without a traceback in its words, which names files of this machine."""
    text = " ".join(str(error).partition("Original traceback")[0].split())
    return f"{type(error).__name__}: {text}"[:LONGEST]


def compare(case: Case, training: bool, engine: str, through: str) -> dict[str, Any]:
    """Agreement in a mode of the module.

    Returns:
        of float64 and float32 the largest errors, relative, by name, or in ``refused`` why elman
        does not run it; ``rounding``, the largest of the loop in float32 against float64;
        ``kinds``, values of another dtype than the loop's; ``flips``, the share of spikes that
        differ in float32; ``loop``, why the ordinary loop does not run in float64. Of a step that
        draws, ``random`` instead of errors.

    Raises:
        LoopError: the ordinary loop fails.
    """
    row: dict[str, Any] = {}
    plain: dict[str, Values] = {}
    for name, dtype in DTYPES.items():
        one, other = (
            build(case, *SMALL, dtype=dtype, training=training, perturbed=True) for _ in range(2)
        )
        try:
            wanted = plain[name] = values(one, loops(one))
        except Exception as problem:
            if name == "float32":
                raise LoopError(reason(problem)) from problem
            row["loop"] = {name: reason(problem)}  # a step of float32 alone
            continue
        try:
            found = values(other, elmans(other, engine, through))
        except Exception as problem:
            row.setdefault("refused", {})[name] = reason(problem)
            continue
        if training and case.random:
            row["random"] = True
            continue
        row[name] = largest(errors(found, wanted))
        wrong = [n for n, v in wanted.items() if n in found and found[n].dtype != v.dtype]
        if wrong:
            row.setdefault("kinds", {})[name] = wrong
        if case.spiking and name == "float32":
            flipped = (found["output 0"] - wanted["output 0"]).abs() > 0.5
            row["flips"] = flipped.double().mean().item()
    if len(plain) == len(DTYPES):
        row["rounding"] = largest(errors(plain["float32"], plain["float64"]))
    return row
