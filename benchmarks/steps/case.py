"""What a step function of the catalogue is, how it is built, and its ordinary Python loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Tree = Any  # of tensors: torch's pytrees
Step = Callable[..., Any]

# How a step is called, with its state as one tree:
CALLS = {
    "x,h->h": "cell(x, h) -> h",
    "x,(h,c)->(h,c)": "cell(x, (h, c)) -> (h, c); the output is h",
    "x,s->out,s": "cell(x, state) -> (out, state)",
    "x,*s->out,*s": "cell(x, s, m) -> (out, s, m)",
    "x,*s->*s": "cell(x, s, m) -> (s, m)",
    "s,x->s,y": "step(carry, x) -> (carry, y), the order of scan",
}


class Sizes(NamedTuple):
    """Sizes of a step: I of the input, H of the state (how a case reads them, it says)."""

    I: int
    H: int

    @property
    def heads(self) -> int:
        """A number of heads that divides H."""
        return 4 if self.H >= 16 else 2


def stream(T: int, B: int, sizes: Sizes) -> Tensor:
    """An ordinary input [T, B, I]."""
    return torch.randn(T, B, sizes.I)


def zeros(count: int = 1) -> Callable[[nn.Module, int, Sizes], Tree]:
    """Initial states of zeros [B, H]: one tensor, or a tuple of so many."""

    def state(module: nn.Module, B: int, sizes: Sizes) -> Tree:
        states = tuple(torch.zeros(B, sizes.H) for _ in range(count))
        return states[0] if count == 1 else states

    return state


@dataclass(frozen=True)
class Case:
    """A step function.

    Attributes:
        name, source: of the step; where it is from.
        module: builds what holds its parameters, as its authors do.
        call: how the step is called, one of ``CALLS``.
        state: its initial state for (module, B, sizes).
        own: T, B, I, H of its package's or authors' example.
        inputs: its input for (T, B, sizes), every leaf [T, B, ..].
        adapt: makes the step from the module and ``statics``, as a user would; none: the module.
        statics: tensors without a time axis that the step reads, for (B, sizes).
        package: to install for it; none: torch is enough.
        trained: whether its parameters are.
        modes: what ``train()`` changes; "" if nothing.
        random: whether it draws in ``train()``, so that two runs differ.
        tied: whether I must be H.
        perturb: whether random numbers may be added to the initial state.
        spiking: whether its output is 0 or 1, so that rounding may flip it.
        refused: why elman is expected to refuse it; "" if it is not.
        remark: what is surprising about it.
    """

    name: str
    source: str
    module: Callable[[Sizes], nn.Module]
    call: str
    state: Callable[[nn.Module, int, Sizes], Tree]
    own: tuple[int, int, int, int]
    inputs: Callable[[int, int, Sizes], Tree] = stream
    adapt: Callable[..., Step] | None = None
    statics: Callable[[int, Sizes], tuple[Tensor, ...]] = lambda B, sizes: ()
    package: str | None = None
    trained: bool = True
    modes: str = ""
    random: bool = False
    tied: bool = False
    perturb: bool = True
    spiking: bool = False
    refused: str = ""
    remark: str = ""

    def absent(self) -> str:
        """Why the step cannot be built here; "" if it can."""
        if self.package is None:
            return ""
        try:
            version(self.package)
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        return ""

    def version(self) -> str:
        """Of the package, or of torch."""
        package = self.package or "torch"
        return f"{package} {version(package)}"


class Built(NamedTuple):
    """A case of some sizes, with values.

    Attributes:
        case, module: of the step.
        step: to call as ``case.call`` says.
        x [T, B, ..], state [B, ..]: trees.
        statics: tensors that the step reads, too.
    """

    case: Case
    module: nn.Module
    step: Step
    x: Tree
    state: Tree
    statics: tuple[Tensor, ...]


def build(
    case: Case,
    T: int,
    B: int,
    sizes: Sizes,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    training: bool = True,
    perturbed: bool = False,
    grad: bool = True,
    seed: int = 0,
) -> Built:
    """Build a case; the same seed gives the same values in every dtype.

    The module is built anew and converted, not copied: copies lose the hooks of parameters.

    Args:
        case, T, B, sizes: what to build; I becomes H where a case ties them.
        dtype: of all floating-point values.
        device: of all values, which are drawn on the CPU.
        training: the module's mode.
        perturbed: whether random numbers are added to the initial state, if the case allows.
        grad: whether x, the states and the statics ask for gradients.
        seed: of all values.
    """
    if case.tied:
        sizes = Sizes(sizes.H, sizes.H)
    torch.manual_seed(seed)
    module = case.module(sizes)
    x = case.inputs(T, B, sizes)
    state = case.state(module, B, sizes)
    statics = case.statics(B, sizes)
    if perturbed and case.perturb:
        state = tree_map(lambda s: s + 0.1 * torch.randn_like(s) if floating(s) else s, state)
    module = module.to(device, dtype).train(training)

    def leaf(value: Any) -> Any:
        if not floating(value):
            return value.to(device) if isinstance(value, Tensor) else value
        kind = dtype.to_complex() if value.is_complex() else dtype
        return value.detach().to(device, kind, copy=True).requires_grad_(grad)

    x, state, statics = tree_map(leaf, (x, state, statics))
    step = module if case.adapt is None else case.adapt(module, *statics)
    return Built(case, module, step, x, state, statics)


def floating(value: Any) -> bool:
    """Whether a leaf is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def call_step(call: str, step: Step, x: Tree, state: Tree) -> tuple[Tree, Tree]:
    """One step: its output and its new state."""
    match call:
        case "x,h->h":
            state = step(x, state)
            return state, state
        case "x,(h,c)->(h,c)":
            state = step(x, state)
            return state[0], state
        case "x,s->out,s":
            return step(x, state)
        case "x,*s->out,*s":
            out, *states = step(x, *state)
            return out, tuple(states)
        case "x,*s->*s":
            state = tuple(step(x, *state))
            return state[0], state
        case "s,x->s,y":
            state, y = step(state, x)
            return y, state
    raise ValueError(f"no way to call a step: {call}")


def at(x: Tree, t: int) -> Tree:
    """The input of step t."""
    return tree_map(lambda leaf: leaf[t], x)


def plain_loop(built: Built, x: Tree, state: Tree) -> tuple[Tree, Tree]:
    """The ordinary Python loop.

    Args:
        built: the step.
        x [T, B, ..], state [B, ..]: trees.

    Returns:
        outputs [T, B, ..] and the last state [B, ..], trees.
    """
    outputs = []
    for t in range(len(tree_leaves(x)[0])):
        y, state = call_step(built.case.call, built.step, at(x, t), state)
        outputs.append(y)
    return tree_map(lambda *ys: torch.stack(ys), *outputs), state
