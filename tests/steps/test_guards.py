"""A formula is read from a step once: whatever the step closes over may change between two runs,
and a formula that has not noticed would show here.

Each case is a step and a change: both runs must have the plain loop's outputs and gradients, and
differ. A case that is ``readable`` must not run as a plain loop; others may.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import itertools
import math
import os
import random
import sys
import time
import types
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._pytree import tree_leaves

import elman
from elman.errors import StepError, StepWarning
from elman.steps.closure import Walk, _is_library
from step_runs import STEPS_CLOSE, Found, differences, distance, found_by, plain_scan

F64 = torch.float64
K = 5
WORLD: dict[str, Any] = {"torch": torch}  # globals of some steps
GLOBAL_HOOKS: list[Any] = []
ENGINES = ["auto", "reference"]
on_engines = pytest.mark.parametrize("engine", ENGINES)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return (0.6 * torch.randn(shape, generator=source, dtype=F64)).to(dtype)


def weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(normal(*shape, seed=seed))


def linear(seed: int = 0, dtype: torch.dtype = F64) -> nn.Linear:
    """A layer of K units with numbers of its own."""
    layer = nn.Linear(K, K, dtype=dtype)
    layer.weight.data.copy_(normal(K, K, seed=seed))
    layer.bias.data.copy_(normal(K, seed=seed + 1))
    return layer


@contextlib.contextmanager
def loops_are(readable: bool) -> Iterator[None]:
    """Inside, a step that runs as a plain loop fails the test if it should be readable."""
    with warnings.catch_warnings():
        warnings.simplefilter("error" if readable else "ignore", StepWarning)
        yield


def scan_on(engine: str) -> Any:
    def scan(step: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        return elman.scan(step, init, xs, engine=engine)

    return scan


def loop_of(module: nn.Module, engine: str) -> Any:
    """As a scan: a loop over a module ``module(carry, x)``, made once."""
    loop = elman.Loop(module, carry_first=True, engine=engine)

    def looped(step: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        ys, carry = loop(xs, init)
        return carry, ys

    return looped


@dataclasses.dataclass
class Case:
    """A step, and what changes of what it closes over.

    Attributes:
        step: a function, or a module ``module(carry, x)``.
        change: what happens between two runs.
        parameters: of which gradients are compared; of a module, all that it has.
    """

    step: Any
    change: Callable[[], Any]
    parameters: Sequence[Tensor] = ()

    def found(self, scan: Any, seed: int = 0) -> Found:
        module = isinstance(self.step, nn.Module)
        parameters = [*self.step.parameters()] if module else self.parameters
        return found_by(scan, self.step, normal(3, K), normal(4, 3, K, seed=seed + 1), parameters)


CASES: list[Any] = []


def case(make: Any = None, *, readable: bool = True) -> Any:
    """Decorates a function that makes a case."""

    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES.append(pytest.param(make, readable, id=make.__name__))
        return make

    return add if make is None else add(make)


def agrees(case: Case, scan: Any, engine: str, readable: bool) -> Found | None:
    """The plain loop's values, if the scan has them, too; None if it cannot read the step, and
    need not."""
    want = case.found(plain_scan)
    with loops_are(readable):
        try:
            got = case.found(scan)
        except StepError:
            if readable or engine == "auto":
                raise
            return None
    off = differences(got, want, STEPS_CLOSE[F64][0])
    assert not off, "\n".join(off)
    return want


# Numbers of functions.


@case
def local_number() -> Case:
    k = 0.5

    def change() -> None:
        nonlocal k
        k = -0.9

    return Case(lambda h, x: (h := torch.tanh(k * h + x), h), change)


@case
def number_in_a_closure_inside_of_a_closure() -> Case:
    k = 0.5

    def outer() -> Any:
        def inner(u: Tensor) -> Tensor:
            return u * k

        return inner

    act = outer()

    def change() -> None:
        nonlocal k
        k = -0.9

    return Case(lambda h, x: (h := torch.tanh(act(h) + x), h), change)


@case
def default_argument() -> Case:
    def step(h: Tensor, x: Tensor, k: float = 0.5) -> Any:
        h = torch.tanh(k * h + x)
        return h, h

    def change() -> None:
        step.__defaults__ = (-0.9,)

    return Case(step, change)


@case
def keyword_default() -> Case:
    def step(h: Tensor, x: Tensor, *, k: float = 0.5) -> Any:
        h = torch.tanh(k * h + x)
        return h, h

    def change() -> None:
        step.__kwdefaults__ = {"k": -0.9}

    return Case(step, change)


@case
def default_argument_of_a_helper() -> Case:
    def scaled(u: Tensor, k: float = 0.5) -> Tensor:
        return k * u

    def change() -> None:
        scaled.__defaults__ = (-0.9,)

    return Case(lambda h, x: (h := torch.tanh(scaled(h) + x), h), change)


@case
def code_replaced() -> Case:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        return h, h

    def other(h: Tensor, x: Tensor) -> Any:
        h = torch.sigmoid(h - x)
        return h, h

    def change() -> None:
        step.__code__ = other.__code__

    return Case(step, change)


@case
def global_number() -> Case:
    WORLD["scale"] = 0.5
    exec("def step(h, x):\n    h = torch.tanh(scale * h + x)\n    return h, h", WORLD)
    return Case(WORLD["step"], lambda: WORLD.update(scale=-0.9))


@case
def global_number_of_a_helper() -> Case:
    WORLD["scale"] = 0.5
    exec("def scaled(u):\n    return scale * u", WORLD)
    exec("def step(h, x):\n    h = torch.tanh(scaled(h) + x)\n    return h, h", WORLD)
    return Case(WORLD["step"], lambda: WORLD.update(scale=-0.9))


@case
def global_function_replaced() -> Case:
    WORLD["act"] = torch.tanh
    exec("def step(h, x):\n    h = act(h + x)\n    return h, h", WORLD)
    return Case(WORLD["step"], lambda: WORLD.update(act=torch.sigmoid))


@case
def global_that_shadows_a_builtin() -> Case:
    WORLD.pop("abs", None)
    exec("def step(h, x):\n    h = torch.tanh(abs(h) + x)\n    return h, h", WORLD)
    return Case(WORLD["step"], lambda: WORLD.update(abs=torch.sin))


@case
def flag_in_another_module() -> Case:
    elsewhere: Any = types.ModuleType("elsewhere")
    elsewhere.torch, elsewhere.SMOOTH = torch, True
    exec("def act(u):\n    return torch.tanh(u) if SMOOTH else torch.relu(u)", vars(elsewhere))

    def change() -> None:
        elsewhere.SMOOTH = False

    return Case(lambda h, x: (h := elsewhere.act(h + x), h), change)


@case
def function_in_another_module_replaced() -> Case:
    elsewhere: Any = types.ModuleType("elsewhere")
    elsewhere.act = torch.tanh

    def change() -> None:
        elsewhere.act = torch.sigmoid

    return Case(lambda h, x: (h := elsewhere.act(h + x), h), change)


@case
def function_in_a_closure_rebound() -> Case:
    act = torch.tanh

    def change() -> None:
        nonlocal act
        act = torch.sigmoid

    return Case(lambda h, x: (h := act(h + x), h), change)


@case
def keyword_of_a_partial() -> Case:
    def step(h: Tensor, x: Tensor, k: float) -> Any:
        h = torch.tanh(k * h + x)
        return h, h

    part = functools.partial(step, k=0.5)
    return Case(part, lambda: part.keywords.update(k=-0.9))


@case
def partial_inside_of_a_step() -> Case:
    act = functools.partial(F.leaky_relu, negative_slope=0.2)
    step = lambda h, x: (h := act(h + x), h)  # noqa: E731
    return Case(step, lambda: act.keywords.update(negative_slope=-0.5))


@case
def arguments_of_a_partial_replaced() -> Case:
    def scaled(k: float, u: Tensor) -> Tensor:
        return k * u

    act = functools.partial(scaled, 0.5)

    def change() -> None:
        nonlocal act
        act = functools.partial(scaled, -0.9)

    return Case(lambda h, x: (h := torch.tanh(act(h) + x), h), change)


@case
def function_behind_a_decorator() -> Case:
    settings = {"k": 0.5}

    def decorated(of: Any) -> Any:
        @functools.wraps(of)
        def wrapper(h: Tensor, x: Tensor) -> Any:
            return of(settings["k"] * h, x)

        return wrapper

    @decorated
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        return h, h

    return Case(step, lambda: settings.update(k=-0.9))


@case
def attribute_of_the_function() -> Case:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(step.k * h + x)  # type: ignore[attr-defined]
        return h, h

    step.k = 0.5  # type: ignore[attr-defined]
    return Case(step, lambda: setattr(step, "k", -0.9))


# Objects.


class Scaled:
    """A step as an object."""

    shared = 0.5

    def __init__(self, k: float = 0.5) -> None:
        self.k = k

    def __call__(self, h: Tensor, x: Tensor) -> Any:
        return self.method(h, x)

    def method(self, h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(self.k * h + x)
        return h, h


@case
def attribute_of_a_callable_object() -> Case:
    step = Scaled()
    return Case(step, lambda: setattr(step, "k", -0.9))


@case
def attribute_of_a_bound_method() -> Case:
    of = Scaled()
    return Case(of.method, lambda: setattr(of, "k", -0.9))


@case
def method_replaced_on_an_object() -> Case:
    of: Any = Scaled()

    def other(self: Any, h: Tensor, x: Tensor) -> Any:
        h = torch.sigmoid(self.k * h - x)
        return h, h

    return Case(of, lambda: setattr(of, "method", types.MethodType(other, of)))


@case
def method_replaced_on_a_class() -> Case:
    class Own(Scaled):
        pass

    def other(self: Any, h: Tensor, x: Tensor) -> Any:
        h = torch.sigmoid(self.k * h - x)
        return h, h

    return Case(Own(), lambda: setattr(Own, "method", other))


@case
def static_and_class_methods() -> Case:
    class Own:
        k = 0.5

        @staticmethod
        def act(u: Tensor) -> Tensor:
            return torch.tanh(u)

        @classmethod
        def scaled(cls, u: Tensor) -> Tensor:
            return cls.k * u

    step = lambda h, x: (h := Own.act(Own.scaled(h) + x), h)  # noqa: E731
    return Case(step, lambda: setattr(Own, "k", -0.9))


@case
def slot() -> Case:
    class Slotted:
        __slots__ = ("k",)

    of = Slotted()
    of.k = 0.5
    return Case(lambda h, x: (h := torch.tanh(of.k * h + x), h), lambda: setattr(of, "k", -0.9))


@case(readable=False)
def attribute_that_getattr_makes() -> Case:
    numbers = {"k": 0.5}

    class Dynamic:
        def __getattr__(self, name: str) -> float:
            return numbers[name]

    of = Dynamic()
    return Case(lambda h, x: (h := torch.tanh(of.k * h + x), h), lambda: numbers.update(k=-0.9))


# Modules that read something of their own: forward calls scale(u).


class Reading(nn.Module):
    """A step as a module, by a function of itself and a tensor."""

    def __init__(self, read: Callable[[Any, Tensor], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.lin = linear()
        self.read = read
        for name, value in attributes.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(self.read(self, h) + 0.5 * self.lin(x))
        return h, h


def reading(
    read: Callable[[Any, Tensor], Tensor], change: Callable[[Any], Any], **attributes: Any
) -> Case:
    """A case of a module that reads something, and a change of the module."""
    module = Reading(read, **attributes)
    return Case(module, lambda: change(module))


def simple(name: str, *row: Any, readable: bool = True, **attributes: Any) -> None:
    """A case by name: what is read, the change, and the attributes of the module."""

    def make() -> Case:
        return reading(*row, **{n: v() for n, v in attributes.items()})

    make.__name__ = name
    case(make, readable=readable)


def sets(**values: Any) -> Callable[[Any], None]:
    """A change that sets attributes."""

    def change(m: Any) -> None:
        for name, value in values.items():
            setattr(
                m, name, value() if callable(value) and not isinstance(value, nn.Module) else value
            )

    return change


Pair = namedtuple("Pair", "k n")


@dataclasses.dataclass
class Config:
    """Numbers of a module."""

    k: float = 0.5
    gains: list[float] = dataclasses.field(default_factory=lambda: [0.5, 1.0])


@dataclasses.dataclass(frozen=True)
class FrozenConfig:
    """Numbers of a module that change by another object alone."""

    k: float = 0.5


def number(value: Any) -> Callable[[], Any]:
    return lambda: value


simple("number_attribute", lambda m, h: m.k * h, sets(k=-0.9), k=number(0.5))
simple("whole_number_attribute", lambda m, h: h[:, [m.i]] + h, sets(i=3), i=number(1))
simple("text_attribute", lambda m, h: getattr(torch, m.f)(h), sets(f="sin"), f=lambda: "sigmoid")
simple("none_attribute", lambda m, h: h if m.k is None else m.k * h, sets(k=-0.9), k=number(None))
simple("flag", lambda m, h: torch.sin(h) if m.on else h * h, sets(on=False), on=number(True))
simple(
    "count_of_sub_steps",
    lambda m, h: [h := h + 0.3 * torch.sin(h) for _ in range(m.n)][-1],
    sets(n=3),
    n=number(1),
)
simple(
    "one_and_true", lambda m, h: torch.sin(h) if m.k is True else h * m.k, sets(k=True), k=number(1)
)
simple(
    "one_and_one_point_zero",
    lambda m, h: h * h if isinstance(m.k, int) else h,
    sets(k=1.0),
    k=number(1),
)
simple("minus_zero", lambda m, h: math.copysign(0.5, m.k) * h, sets(k=-0.0), k=number(0.0))
simple("infinite_limit", lambda m, h: h.clamp(max=m.most), sets(most=0.1), most=number(math.inf))
simple(
    "list_element",
    lambda m, h: m.ks[1] * h,
    lambda m: m.ks.__setitem__(1, -0.9),
    ks=lambda: [1.0, 0.5],
)
simple(
    "list_length",
    lambda m, h: sum(k * h for k in m.ks),
    lambda m: m.ks.append(-0.9),
    ks=lambda: [1.0, 0.5],
)
simple(
    "dict_element", lambda m, h: m.ks["k"] * h, lambda m: m.ks.update(k=-0.9), ks=lambda: {"k": 0.5}
)
simple(
    "dict_key_added", lambda m, h: m.ks.get("k", 0.5) * h, lambda m: m.ks.update(k=-0.9), ks=dict
)
simple(
    "dict_key_asked_for", lambda m, h: h if "k" in m.ks else -h, lambda m: m.ks.update(k=1), ks=dict
)
simple(
    "dict_order",
    lambda m, h: functools.reduce(lambda u, f: f(u), m.fs.values(), h),
    lambda m: m.fs.update(a=m.fs.pop("a")),
    fs=lambda: {"a": torch.sin, "b": torch.square},
)
simple("set_element", lambda m, h: h if 1 in m.ks else -h, lambda m: m.ks.clear(), ks=lambda: {1})
simple(
    "nested_containers",
    lambda m, h: m.ks["a"][0]["k"] * h,
    lambda m: m.ks["a"][0].update(k=-0.9),
    ks=lambda: {"a": [{"k": 0.5}]},
)
simple(
    "tuple_replaced", lambda m, h: m.ks[1] * h, sets(ks=lambda: (1.0, -0.9)), ks=lambda: (1.0, 0.5)
)
simple(
    "named_tuple_replaced",
    lambda m, h: m.pair.k * h,
    sets(pair=lambda: Pair(-0.9, 2)),
    pair=lambda: Pair(0.5, 2),
)
simple(
    "dataclass_field",
    lambda m, h: m.config.k * h,
    lambda m: setattr(m.config, "k", -0.9),
    config=Config,
)
simple(
    "list_of_a_dataclass",
    lambda m, h: m.config.gains[0] * h,
    lambda m: m.config.gains.__setitem__(0, -0.9),
    config=Config,
)
simple(
    "frozen_dataclass_replaced",
    lambda m, h: m.config.k * h,
    sets(config=lambda: FrozenConfig(-0.9)),
    config=FrozenConfig,
)
simple(
    "simple_namespace",
    lambda m, h: m.ns.k * h,
    lambda m: setattr(m.ns, "k", -0.9),
    ns=lambda: types.SimpleNamespace(k=0.5),
)
simple("object_attribute", lambda m, h: m.of.k * h, lambda m: setattr(m.of, "k", -0.9), of=Scaled)
simple(
    "array_of_numpy",
    lambda m, h: float(m.ks[0]) * h,
    lambda m: m.ks.fill(-0.9),
    ks=lambda: np.array([0.5]),
    readable=False,
)
simple(
    "array_of_numpy_as_a_tensor",
    lambda m, h: torch.from_numpy(m.ks) * h,
    lambda m: m.ks.fill(-0.9),
    ks=lambda: np.full(K, 0.5),
    readable=False,
)
simple(
    "list_as_a_tensor",
    lambda m, h: torch.tensor(m.ks, dtype=h.dtype) * h,
    lambda m: m.ks.__setitem__(0, -0.9),
    ks=lambda: [0.5] * K,
    readable=False,
)
simple(
    "activation_attribute",
    lambda m, h: m.act(h),
    sets(act=lambda: torch.sin),
    act=lambda: torch.square,
)
simple("activation_module", lambda m, h: m.act(h), sets(act=nn.Sigmoid()), act=nn.Tanh)
simple(
    "number_of_an_activation",
    lambda m, h: m.act(h),
    lambda m: setattr(m.act, "negative_slope", -0.5),
    act=lambda: nn.LeakyReLU(0.2),
)
simple(
    "attribute_of_a_norm",
    lambda m, h: m.norm(h),
    lambda m: setattr(m.norm, "eps", 3.0),
    norm=lambda: nn.LayerNorm(K, dtype=F64),
)
simple(
    "attribute_of_a_nested_module",
    lambda m, h: m.sub.sub.k * h,
    lambda m: setattr(m.sub.sub, "k", -0.9),
    sub=lambda: Reading(torch.mul, sub=Reading(torch.mul, k=0.5)),
)
simple("submodule_replaced", lambda m, h: m.sub(h), sets(sub=linear(7)), sub=linear)
simple("submodule_of_another_kind", lambda m, h: m.sub(h), sets(sub=nn.Identity()), sub=linear)
simple(
    "element_of_a_sequential",
    lambda m, h: m.sub(h),
    lambda m: m.sub.__setitem__(1, nn.Sigmoid()),
    sub=lambda: nn.Sequential(linear(), nn.Tanh()),
)
simple(
    "sequential_grows",
    lambda m, h: m.sub(h),
    lambda m: m.sub.append(nn.Sigmoid()),
    sub=lambda: nn.Sequential(linear()),
)
simple(
    "module_list_grows",
    lambda m, h: [h := sub(h) for sub in m.subs][-1],
    lambda m: m.subs.append(linear(3)),
    subs=lambda: nn.ModuleList([linear()]),
)
simple(
    "module_dict_element",
    lambda m, h: m.subs["a"](h),
    lambda m: m.subs.update({"a": linear(3)}),
    subs=lambda: nn.ModuleDict({"a": linear()}),
)
simple(
    "parameter_list_grows",
    lambda m, h: sum(w * h for w in m.ws),
    lambda m: m.ws.append(weight(K, seed=2)),
    ws=lambda: nn.ParameterList([weight(K)]),
)
simple(
    "parameter_replaced",
    lambda m, h: m.w * h,
    sets(w=lambda: weight(K, seed=2)),
    w=lambda: weight(K),
)
simple(
    "parameter_of_a_layer_replaced",
    lambda m, h: h,
    lambda m: setattr(m.lin, "weight", weight(K, K, seed=2)),
)
simple(
    "parameter_replaced_by_one_that_broadcasts",
    lambda m, h: m.w * h,
    sets(w=lambda: weight(1, seed=2)),
    w=lambda: weight(K),
)
simple("parameter_to_none", lambda m, h: h, lambda m: setattr(m.lin, "bias", None))
simple(
    "parameter_in_place", lambda m, h: m.w * h, lambda m: m.w.data.fill_(-0.9), w=lambda: weight(K)
)
simple(
    "data_of_a_parameter_replaced",
    lambda m, h: m.w * h,
    lambda m: setattr(m.w, "data", normal(K, seed=2)),
    w=lambda: weight(K),
)
simple(
    "data_replaced_by_a_transposed_one",
    lambda m, h: h @ m.w,
    lambda m: setattr(m.w, "data", m.w.data.clone().T),
    w=lambda: weight(K, K),
)
simple(
    "parameter_frozen",
    lambda m, h: m.w * h,
    lambda m: m.w.requires_grad_(False),
    w=lambda: weight(K),
)
simple(
    "parameter_thawed",
    lambda m, h: m.w * h,
    lambda m: m.w.requires_grad_(),
    w=lambda: weight(K).requires_grad_(False),
)
simple(
    "parameter_becomes_a_buffer",
    lambda m, h: m.w * h,
    lambda m: (delattr(m, "w"), m.register_buffer("w", normal(K, seed=2))),
    w=lambda: weight(K),
)
simple("buffer_in_place", lambda m, h: m.b * h, lambda m: m.b.fill_(-0.9), b=lambda: normal(K))
simple(
    "buffer_replaced", lambda m, h: m.b * h, sets(b=lambda: normal(K, seed=2)), b=lambda: normal(K)
)
simple(
    "buffer_replaced_by_one_that_broadcasts",
    lambda m, h: m.b * h,
    sets(b=lambda: normal(1, seed=2)),
    b=lambda: normal(K),
)
simple(
    "whole_numbers_in_a_buffer",
    lambda m, h: h[:, m.b],
    lambda m: m.b.copy_(m.b.flip(0)),
    b=lambda: torch.arange(K),
)
simple(
    "truths_in_a_buffer",
    lambda m, h: torch.where(m.b, h, -h),
    lambda m: m.b.logical_not_(),
    b=lambda: torch.arange(K) > 2,
)
simple(
    "weights_tied",
    lambda m, h: m.u * (m.w + h),
    lambda m: setattr(m, "u", m.w),
    u=lambda: weight(K),
    w=lambda: weight(K, seed=2),
)
simple(
    "load_state_dict",
    lambda m, h: m.w * h,
    lambda m: m.load_state_dict({n: v + 0.4 for n, v in m.state_dict().items()}),
    w=lambda: weight(K),
)
simple(
    "load_state_dict_by_assigning",
    lambda m, h: m.w * h,
    lambda m: m.load_state_dict({n: v + 0.4 for n, v in m.state_dict().items()}, assign=True),
    w=lambda: weight(K),
)
simple(
    "number_of_an_item",
    lambda m, h: m.b.item() * h,
    lambda m: m.b.fill_(-0.9),
    b=lambda: torch.tensor(0.5),
    readable=False,
)
simple(
    "number_of_a_float",
    lambda m, h: float(m.b) * h,
    lambda m: m.b.fill_(-0.9),
    b=lambda: torch.tensor(0.5),
    readable=False,
)
simple(
    "numbers_of_a_tolist",
    lambda m, h: m.b.tolist()[0] * h,
    lambda m: m.b.fill_(-0.9),
    b=lambda: normal(2),
    readable=False,
)
simple(
    "branch_on_a_buffer",
    lambda m, h: h if m.b > 0 else -h,
    lambda m: m.b.neg_(),
    b=lambda: torch.tensor(0.5),
    readable=False,
)
simple(
    "branch_on_a_parameter",
    lambda m, h: m.w * h if m.w.sum() > 0 else h,
    lambda m: m.w.data.neg_(),
    w=lambda: weight(K),
    readable=False,
)
simple(
    "index_in_a_buffer",
    lambda m, h: h + h[:, int(m.b)][:, None],
    lambda m: m.b.fill_(2),
    b=lambda: torch.tensor(1),
    readable=False,
)
simple("training_by_hand", lambda m, h: torch.sin(h) if m.training else 0.5 * h, lambda m: m.eval())
simple(
    "training_of_a_submodule",
    lambda m, h: m.lin(h) if m.lin.training else h,
    lambda m: m.lin.eval(),
)
# Chance that is none: a dropout of all, or of nothing.
simple(
    "training_of_a_dropout",
    lambda m, h: m.drop(h),
    lambda m: m.eval(),
    drop=lambda: nn.Dropout(1.0),
    readable=False,
)
simple(
    "evaluation_of_a_dropout",
    lambda m, h: m.drop(h),
    lambda m: setattr(m.drop, "p", 0.1),
    drop=lambda: nn.Dropout(0.5).eval(),
)
simple(
    "probability_of_a_dropout",
    lambda m, h: m.drop(h),
    lambda m: setattr(m.drop, "p", 1.0),
    drop=lambda: nn.Dropout(0.0),
    readable=False,
)
simple(
    "probability_of_a_function",
    lambda m, h: F.dropout(h, m.p, m.training),
    sets(p=1.0),
    p=number(0.0),
    readable=False,
)
simple(
    "batch_norm_in_evaluation",
    lambda m, h: m.norm(h),
    lambda m: m.norm.running_var.fill_(4.0),
    norm=lambda: nn.BatchNorm1d(K, dtype=F64).eval(),
    readable=False,
)
# Hooks, and weights that are computed of others.
simple(
    "forward_hook_added",
    lambda m, h: m.sub(h),
    lambda m: m.sub.register_forward_hook(lambda m, given, out: -out),
    sub=linear,
)
simple(
    "forward_pre_hook_added",
    lambda m, h: m.sub(h),
    lambda m: m.sub.register_forward_pre_hook(lambda m, given: (given[0] * 3,)),
    sub=linear,
)
simple(
    "backward_hook_added",
    lambda m, h: m.sub(h),
    lambda m: m.sub.register_full_backward_hook(lambda m, d_in, d_out: (d_in[0] * 3,)),
    sub=linear,
    readable=False,
)
simple(
    "hook_of_a_parameter",
    lambda m, h: m.w * h,
    lambda m: m.w.register_hook(lambda d: d * 3),
    w=lambda: weight(K),
)
simple(
    "forward_replaced_on_a_submodule",
    lambda m, h: m.sub(h),
    lambda m: setattr(m.sub, "forward", torch.sin),
    sub=linear,
)
simple(
    "parametrization_added",
    lambda m, h: m.sub(h),
    lambda m: parametrize.register_parametrization(m.sub, "weight", Symmetric()),
    sub=linear,
)
simple(
    "pruned",
    lambda m, h: m.sub(h),
    lambda m: prune.l1_unstructured(m.sub, "weight", 0.5),
    sub=linear,
)
simple(
    "weight_norm_added",
    lambda m, h: m.sub(h),
    lambda m: (
        parametrizations.weight_norm(m.sub),
        m.sub.parametrizations.weight.original0.data.mul_(2),
    ),
    sub=linear,
)
simple(
    "spectral_norm_in_evaluation",
    lambda m, h: m.sub(h),
    lambda m: parametrizations.spectral_norm(m.sub).eval(),
    sub=linear,
)
simple(
    "orthogonal_weight",
    lambda m, h: m.sub(h),
    lambda m: parametrizations.orthogonal(m.sub),
    sub=linear,
    readable=False,
)


class Symmetric(nn.Module):
    """A matrix from another one."""

    gain = 0.5

    def forward(self, w: Tensor) -> Tensor:
        return self.gain * (w + w.T)


@case
def forward_hook_removed() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    hook = module.sub.register_forward_hook(lambda m, given, out: -out)
    return Case(module, hook.remove)


@case
def forward_pre_hook_removed() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    hook = module.sub.register_forward_pre_hook(lambda m, given: (given[0] * 3,))
    return Case(module, hook.remove)


@case
def number_of_a_hook() -> Case:
    module, settings = Reading(lambda m, h: m.sub(h), sub=linear()), {"k": 2.0}
    module.sub.register_forward_hook(lambda m, given, out: settings["k"] * out)
    return Case(module, lambda: settings.update(k=-0.9))


@case
def hook_of_the_step_itself() -> Case:
    module = Reading(lambda m, h: h)

    def change() -> None:
        module.register_forward_hook(lambda m, given, out: (0.5 * out[0], out[1]))

    return Case(module, change)


@case(readable=False)
def global_forward_hook() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())

    def change() -> None:
        def halve(m: Any, given: Any, out: Any) -> Any:
            return 0.5 * out if m is module.sub else None

        GLOBAL_HOOKS.append(nn.modules.module.register_module_forward_hook(halve))

    return Case(module, change)


@case
def parametrization_removed() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    parametrize.register_parametrization(module.sub, "weight", Symmetric())

    def change() -> None:
        parametrize.remove_parametrizations(module.sub, "weight", leave_parametrized=False)

    return Case(module, change)


@case
def number_of_a_parametrization() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    parametrize.register_parametrization(module.sub, "weight", Symmetric())
    return Case(module, lambda: setattr(module.sub.parametrizations.weight[0], "gain", -0.9))


@case
def mask_of_pruning_in_place() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    prune.l1_unstructured(module.sub, "weight", 0.5)
    return Case(module, lambda: module.sub.weight_mask.fill_(1.0))


@case
def pruning_made_permanent() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=linear())
    prune.l1_unstructured(module.sub, "weight", 0.5)
    return Case(module, lambda: prune.remove(module.sub, "weight"))  # gradients of what was cut


@case
def length_of_weight_norm() -> Case:
    module = Reading(lambda m, h: m.sub(h), sub=parametrizations.weight_norm(linear()))
    of = module.sub.parametrizations.weight
    return Case(module, lambda: of.original0.data.mul_(-2))


@case
def old_weight_norm() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sub = torch.nn.utils.weight_norm(linear())
    module = Reading(lambda m, h: m.sub(h), sub=sub)
    return Case(module, lambda: sub.weight_g.data.mul_(-2))


@case
def weights_untied() -> Case:
    module = Reading(lambda m, h: m.u * (m.w + h), u=weight(K))
    module.w = module.u
    return Case(module, lambda: setattr(module, "w", weight(K, seed=2)))


@case
def class_attribute() -> Case:
    class Own(Reading):
        k = 0.5

    return Case(Own(lambda m, h: m.k * h), lambda: setattr(Own, "k", -0.9))


@case
def class_attribute_hidden_by_one_of_the_module() -> Case:
    class Own(Reading):
        k = 0.5

    module = Own(lambda m, h: m.k * h)
    return Case(module, lambda: setattr(module, "k", -0.9))


@case
def property_that_reads_an_attribute() -> Case:
    class Own(Reading):
        @property
        def k(self) -> float:
            return 2 * self.half

    module = Own(lambda m, h: m.k * h, half=0.25)
    return Case(module, lambda: setattr(module, "half", -0.45))


@case
def property_that_computes_a_weight() -> Case:
    class Own(Reading):
        @property
        def decay(self) -> Tensor:
            return torch.exp(-F.softplus(self.raw) * self.k)

    module = Own(lambda m, h: m.decay * h, raw=weight(K), k=0.5)
    return Case(module, lambda: setattr(module, "k", 2.0))


@case
def method_of_the_module_class() -> Case:
    class Own(Reading):
        def act(self, h: Tensor) -> Tensor:
            return torch.sin(h)

    return Case(
        Own(lambda m, h: m.act(h)), lambda: setattr(Own, "act", lambda self, h: torch.square(h))
    )


@case
def forward_of_the_module_class() -> Case:
    class Own(Reading):
        pass

    def other(self: Any, h: Tensor, x: Tensor) -> Any:
        h = torch.sigmoid(h - x)
        return h, h

    return Case(Own(lambda m, h: h), lambda: setattr(Own, "forward", other))


# Tensors of functions.


@case
def tensor_in_a_closure_rebound() -> Case:
    w = normal(K)

    def change() -> None:
        nonlocal w
        w = normal(K, seed=2)

    return Case(lambda h, x: (h := torch.tanh(w * h + x), h), change)


@case
def tensor_in_a_closure_in_place() -> Case:
    w = normal(K)
    return Case(lambda h, x: (h := torch.tanh(w * h + x), h), lambda: w.fill_(-0.9))


@case
def tensor_in_a_list_replaced() -> Case:
    ws = [normal(K)]
    step = lambda h, x: (h := torch.tanh(ws[0] * h + x), h)  # noqa: E731
    return Case(step, lambda: ws.__setitem__(0, normal(K, seed=2)))


@case
def parameter_in_a_closure_rebound() -> Case:
    w, other = weight(K), weight(K, seed=2)
    both = [w, other]

    def change() -> None:
        nonlocal w
        w = other

    return Case(lambda h, x: (h := torch.tanh(w * h + x), h), change, both)


@case
def tensor_that_begins_to_learn() -> Case:
    w = normal(K)
    step = lambda h, x: (h := torch.tanh(w * h + x), h)  # noqa: E731
    return Case(step, lambda: w.requires_grad_(), [w])


@case
def weight_computed_outside() -> Case:
    """A tensor that has a history, which gradients flow through to a leaf."""
    w, k = weight(K), 0.5
    held = {"w": torch.tanh(w) * k}

    def change() -> None:
        held["w"] = torch.sin(w)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(held["w"] * h + x)
        return h, h

    return Case(step, change, [held["w"]])


@case
def view_of_a_tensor_that_changes() -> Case:
    whole = normal(2, K)
    row = whole[0]
    return Case(lambda h, x: (h := torch.tanh(row * h + x), h), lambda: whole.fill_(-0.9))


@case
def module_in_a_closure_rebound() -> Case:
    sub = linear()
    parameters = [*sub.parameters()]

    def change() -> None:
        nonlocal sub
        sub = linear(5)
        parameters[:] = sub.parameters()

    return Case(lambda h, x: (h := torch.tanh(sub(h) + x), h), change, parameters)


@case(readable=False)
def context_variable() -> Case:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=0.5)
    step = lambda h, x: (h := torch.tanh(scale.get() * h + x), h)  # noqa: E731
    return Case(step, lambda: scale.set(-0.9))


@case(readable=False)
def cached_function() -> Case:
    settings = {"k": 0.5}

    @functools.cache
    def scale() -> float:
        return settings["k"]

    def change() -> None:
        settings.update(k=-0.9)
        scale.cache_clear()

    return Case(lambda h, x: (h := torch.tanh(scale() * h + x), h), change)


@case(readable=False)
def environment_variable() -> Case:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(float(os.environ.get("SCALE_OF_A_STEP", 0.5)) * h + x)
        return h, h

    return Case(step, lambda: os.environ.update(SCALE_OF_A_STEP="-0.9"))


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Hooks of all modules, and variables of the environment, end with their test."""
    yield
    while GLOBAL_HOOKS:
        GLOBAL_HOOKS.pop().remove()
    os.environ.pop("SCALE_OF_A_STEP", None)


def noticed(case: Case, scan: Any, engine: str, readable: bool) -> None:
    """Both runs, before and after the change, have the plain loop's values, which differ."""
    before = agrees(case, scan, engine, readable)
    case.change()
    after = agrees(case, scan, engine, readable)
    if before is not None and after is not None:
        names = {*before} & {*after}
        assert {*before} != {*after} or any(
            (before[n] is None) != (after[n] is None) or distance(before[n], after[n]) > 1e-3
            for n in names
        ), "the change shows nowhere: the test is void"


# Changes after which a plain loop has the same values as before.
UNSEEN = {"evaluation_of_a_dropout"}


@on_engines
@pytest.mark.parametrize("make, readable", CASES)
def test_a_change_is_noticed_by_a_scan(make, readable, engine):
    case = make()
    if make.__name__ in UNSEEN:
        agrees(case, scan_on(engine), engine, readable)
        case.change()
        agrees(case, scan_on(engine), engine, readable)
        return
    noticed(case, scan_on(engine), engine, readable)


MODULES = [c for c in CASES if isinstance(c.values[0]().step, nn.Module)]


@on_engines
@pytest.mark.parametrize("make, readable", [c for c in MODULES if c.id not in UNSEEN])
def test_a_change_is_noticed_by_a_loop(make, readable, engine):
    case = make()
    noticed(case, loop_of(case.step, engine), engine, readable)


@on_engines
def test_a_flag_that_goes_to_and_fro(engine):
    """Formulas of before are not mixed up."""
    module = Reading(lambda m, h: torch.sin(h) * m.k if m.on else h * m.k, on=True, k=1.0)
    scan = loop_of(module, engine)
    for on, k in [(True, 1.0), (False, 1.0), (True, 1.0), (True, 0.5), (False, 0.5), (False, 1.0)]:
        module.on, module.k = on, k
        agrees(Case(module, print), scan, engine, readable=True)


@on_engines
def test_steps_of_one_code_have_closures_of_their_own(engine):
    def made(k: float, w: Tensor) -> Any:
        return lambda h, x: (h := torch.tanh(k * w * h + x), h)

    steps = [made(k, w) for k in (0.5, -0.9) for w in (normal(K), normal(K, seed=2))]
    for step in steps + steps:
        agrees(Case(step, print), scan_on(engine), engine, readable=True)


@on_engines
def test_a_step_with_defaults_is_made_in_each_call(engine, monkeypatch):
    """It is walked again only where another object stands in a default."""
    walks = list[int]()
    walk = Walk.__init__

    def counted(self: Walk, step: Any, batch: int = 0) -> None:
        walks.append(1)
        walk(self, step, batch)

    def made(k: float, w: Tensor, shift: Tensor) -> Any:
        def step(h: Tensor, x: Tensor, k: float = k, *, w: Tensor = w) -> tuple[Tensor, Tensor]:
            return (h := torch.tanh(k * w * h + x + shift), h)

        return step

    k, w, shift = 0.5, normal(K), normal(K, seed=3)
    scan = scan_on(engine)
    agrees(Case(made(k, w, shift), print), scan, engine, readable=True)
    monkeypatch.setattr(Walk, "__init__", counted)
    agrees(Case(made(k, w, shift), print), scan, engine, readable=True)
    assert not walks
    others = (-0.9, w, shift), (k, normal(K, seed=2), shift), (k, w, normal(K, seed=4))
    for values in others:
        agrees(Case(made(*values), print), scan, engine, readable=True)
        assert walks.pop()


@on_engines
def test_a_step_that_is_gone_leaves_nothing_to_another_at_its_address(engine):
    def made(k: float) -> Any:
        return lambda h, x: (h := torch.tanh(k * h + x), h)

    for k in (0.5, -0.9, 0.3, 0.7, -0.2):
        agrees(Case(made(k), print), scan_on(engine), engine, readable=True)
        module = Reading(lambda m, h: m.k * h, k=k)
        agrees(Case(module, print), loop_of(module, engine), engine, readable=True)
        del module
        gc.collect()


@on_engines
def test_a_copy_of_a_loop_has_weights_of_its_own(engine):
    module = Reading(lambda m, h: m.w * h * m.k, w=weight(K), k=0.5)
    loop = elman.Loop(module, carry_first=True, engine=engine)
    x, h = normal(4, 3, K), normal(3, K)
    before = loop(x, h)[0]
    other = copy.deepcopy(loop)
    torch.testing.assert_close(other(x, h)[0], before)
    copied = next(m for m in other.modules() if isinstance(m, Reading))
    copied.w.data.fill_(-0.9)
    copied.k = 0.7
    torch.testing.assert_close(loop(x, h)[0], before)
    torch.testing.assert_close(other(x, h)[0], plain_scan(copied, h, x)[1])


@on_engines
def test_gradients_of_a_loop_arrive_at_its_parameters(engine):
    """By backward: tied ones once, frozen ones none."""
    module = Reading(lambda m, h: m.w * h + m.tied * m.cold, w=weight(K), cold=weight(K, seed=2))
    module.tied = module.w
    loop = elman.Loop(module, carry_first=True, engine=engine)
    x, h = normal(4, 3, K), normal(3, K)
    for frozen in (False, True, False):
        module.cold.requires_grad_(not frozen)
        grads: list[dict[str, Any]] = []
        for run in (lambda: loop(x, h)[0], lambda: plain_scan(module, h, x)[1]):
            module.zero_grad()
            run().sin().sum().backward()
            grads.append({n: p.grad for n, p in module.named_parameters()})
        got, want = grads
        assert (got["cold"] is None) == frozen
        for name, expected in want.items():
            if expected is not None:
                torch.testing.assert_close(got[name], expected)


@on_engines
def test_nothing_learns_where_all_is_frozen(engine):
    module = Reading(lambda m, h: m.w * h, w=weight(K))
    scan = scan_on(engine)
    assert scan(module, normal(3, K), normal(4, 3, K))[1].requires_grad
    module.requires_grad_(False)
    assert not scan(module, normal(3, K), normal(4, 3, K))[1].requires_grad
    module.requires_grad_()
    with torch.no_grad():
        assert not scan(module, normal(3, K), normal(4, 3, K))[1].requires_grad


@on_engines
def test_a_module_trains_as_its_loop_does(engine):
    """An optimizer writes into weights."""
    losses: list[list[float]] = []
    for elmans in (True, False):
        module = Reading(lambda m, h: m.w * h, w=weight(K))
        scan = loop_of(module, engine) if elmans else plain_scan
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        rows = []
        for _ in range(5):
            loss = scan(module, normal(3, K), normal(4, 3, K))[1].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows.append(loss.item())
        losses.append(rows)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < losses[0][0]


# What is around a step.


def values_agree(step: Any, scan: Any, h: Any, x: Any, readable: bool, **close: float) -> Tensor:
    """Outputs as of the plain loop, in its dtype."""
    _, want = plain_scan(step, h, x)
    with loops_are(readable):
        try:
            _, got = scan(step, h, x)
        except StepError:
            if readable:
                raise
            return want
    for left, right in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(left, right, **close)
    return want


@on_engines
def test_a_module_goes_to_double_and_back(engine):
    module = Reading(lambda m, h: m.lin(h)).float()
    scan = loop_of(module, engine)
    for dtype in (torch.float32, torch.float64, torch.float32):
        module.to(dtype)
        h, x = normal(3, K, dtype=dtype), normal(4, 3, K, dtype=dtype)
        assert values_agree(module, scan, h, x, True).dtype == dtype


@on_engines
def test_a_step_asks_whether_gradients_are_on(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x) if torch.is_grad_enabled() else torch.sigmoid(h + x)
        return h, h

    h, x = normal(3, K), normal(4, 3, K)
    with_gradients = values_agree(step, scan_on(engine), h, x, readable=False)
    with torch.no_grad():
        without = values_agree(step, scan_on(engine), h, x, readable=False)
    assert not torch.equal(with_gradients, without)
    values_agree(step, scan_on(engine), h, x, readable=False)


@on_engines
def test_without_gradients_and_with_them(engine):
    module = Reading(lambda m, h: m.w * h, w=weight(K))
    with torch.no_grad():
        values_agree(module, scan_on(engine), normal(3, K), normal(4, 3, K), readable=True)
    agrees(Case(module, print), scan_on(engine), engine, readable=True)
    with torch.inference_mode():
        values_agree(module, scan_on(engine), normal(3, K), normal(4, 3, K), readable=True)
    agrees(Case(module, print), scan_on(engine), engine, readable=True)


@on_engines
def test_default_dtype(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        wide = torch.ones(K) * 0.1 + x  # of torch's default dtype, which decides this one's
        return torch.tanh(h + x), wide

    h, x = normal(3, K, dtype=torch.float32), normal(4, 3, K, dtype=torch.float32)
    scan = scan_on(engine)
    assert values_agree(step, scan, h, x, readable=False).dtype == torch.float32
    torch.set_default_dtype(F64)
    try:
        assert values_agree(step, scan, h, x, readable=False).dtype == F64
    finally:
        torch.set_default_dtype(torch.float32)
    assert values_agree(step, scan, h, x, readable=False).dtype == torch.float32


@on_engines
def test_autocast(engine):
    lin = linear(dtype=torch.float32)

    def step(h: Tensor, x: Tensor) -> Any:
        y = lin(h) + lin(x)  # of few digits in autocast
        return torch.tanh(y).float(), y

    h, x = normal(3, K, dtype=torch.float32), normal(4, 3, K, dtype=torch.float32)
    scan = scan_on(engine)
    close = {"rtol": 2e-2, "atol": 2e-2}
    assert values_agree(step, scan, h, x, readable=True).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        few = values_agree(step, scan, h, x, readable=False, **close)
        assert few.dtype == torch.bfloat16
    assert values_agree(step, scan, h, x, readable=True).dtype == torch.float32


# What a step is given: sizes are part of the formula.


@on_engines
def test_sizes_that_a_step_reads(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h / len(h) + x / x.shape[-1] + x.mean(-1, keepdim=True) * x.size(0))
        return h, h

    for B, n in [(3, 5), (4, 5), (4, 2), (3, 5), (1, 1)]:
        values_agree(step, scan_on(engine), normal(B, n), normal(4, B, n), readable=False)


@on_engines
def test_an_input_more_and_an_input_less(engine):
    def step(h: Tensor, x: dict[str, Tensor]) -> Any:
        h = torch.tanh(0.5 * h + sum(x.values()))
        return h, {name: h * value for name, value in x.items()}

    every = {name: normal(4, 3, K, seed=i) for i, name in enumerate("abc")}
    for names in ("a", "ab", "b", "cba", "a"):
        xs = {name: every[name] for name in names}
        values_agree(step, scan_on(engine), normal(3, K), xs, readable=True)


@on_engines
def test_a_carry_of_another_structure(engine):
    def step(carry: Any, x: Tensor) -> Any:
        if isinstance(carry, tuple):
            h, c = carry
            h, c = torch.tanh(c + x), torch.sin(h)
            return (h, c), h * c
        h = torch.tanh(carry + x)
        return h, h

    h, c, x = normal(3, K), normal(3, K, seed=2), normal(4, 3, K)
    for carry in (h, (h, c), h):
        values_agree(step, scan_on(engine), carry, x, readable=True)


@on_engines
def test_inputs_of_another_dtype(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + 0.5 * x) if x.is_floating_point() else torch.sin(h + x)
        return h, h

    real, whole = normal(4, 3, K), torch.arange(12 * K).view(4, 3, K) % 3
    for x in (real, whole, whole > 1, real):
        values_agree(step, scan_on(engine), normal(3, K), x, readable=False)


@on_engines
def test_a_branch_on_numbers_of_the_inputs_is_no_formula(engine):
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x) if x.mean() > 0 else torch.sigmoid(h - x)
        return h, h

    x = normal(6, 3, K)
    assert len({bool(row.mean() > 0) for row in x}) == 2
    for given in (x.abs(), -x.abs(), x):
        values_agree(step, scan_on(engine), normal(3, K), given, readable=False)
    if engine != "auto":
        with pytest.raises(StepError):
            elman.scan(step, normal(3, K), x, engine=engine)


# Steps that change something themselves.


class Counting(nn.Module):
    """A step with a clock of its own."""

    def __init__(self, matters: bool) -> None:
        super().__init__()
        self.steps, self.matters = 0, matters

    def forward(self, h: Tensor, x: Tensor) -> Any:
        self.steps += 1
        h = torch.tanh(h + x * (1 / self.steps if self.matters else 1))
        return h, h


@on_engines
@pytest.mark.parametrize("matters", [True, False])
def test_a_counter_that_the_step_itself_advances(engine, matters):
    module = Counting(matters)
    h, x = normal(3, K), normal(4, 3, K)
    for _ in range(2):
        module.steps = 0
        _, want = plain_scan(module, h, x)
        module.steps = 0
        with loops_are(False):
            try:
                _, got = elman.scan(module, h, x, engine=engine)
            except StepError:
                assert engine != "auto"
                return
        torch.testing.assert_close(got, want)


@on_engines
def test_a_buffer_that_the_step_itself_writes(engine):
    """Whoever reads it after a run must find what a plain loop leaves there."""
    module = Reading(lambda m, h: h + 0.1 * m.trace.add_(h.detach().mean(0)), trace=normal(K))
    h, x = normal(3, K), normal(4, 3, K)
    module.trace.zero_()
    _, want = plain_scan(module, h, x)
    left = module.trace.clone()
    module.trace.zero_()
    with loops_are(False):
        try:
            _, got = elman.scan(module, h, x, engine=engine)
        except StepError:
            assert engine != "auto"
            assert not module.trace.any(), "a step that is refused has written nothing"
            return
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(module.trace, left)


@on_engines
def test_a_list_that_the_step_itself_appends_to(engine):
    kept: list[Tensor] = []

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        kept.append(h)
        return h, h

    with loops_are(False):
        try:
            _, ys = elman.scan(step, normal(3, K), normal(4, 3, K), engine=engine)
        except StepError:
            assert engine != "auto"
            return
    if engine == "auto":
        torch.testing.assert_close(torch.stack(kept[-4:]), ys)


@on_engines
def test_a_deque_and_an_iterator(engine):
    """Containers of Python's that are neither lists nor dicts."""
    numbers, counted = collections.deque([0.5, 0.25]), itertools.count(1)
    h, x = normal(3, K), normal(4, 3, K)

    def of_deque(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(numbers[0] * h + x)
        return h, h

    before = values_agree(of_deque, scan_on(engine), h, x, readable=True)
    numbers.rotate(1)
    assert not torch.equal(before, values_agree(of_deque, scan_on(engine), h, x, readable=True))

    def of_iterator(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x / next(counted))
        return h, h

    with loops_are(False), pytest.raises(StepError, match="an iterator"):
        elman.scan(of_iterator, h, x, engine="reference")


@pytest.mark.parametrize(
    "number",
    [random.random, time.time, lambda: float(np.random.rand()), lambda: random.uniform(0, 1)],
    ids=["random", "clock", "numpy", "module"],
)
def test_numbers_by_chance_are_refused_by_name(number):
    """They would be those of the call in which the step was traced."""

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(number() * h + x)
        return h, h

    with pytest.raises(StepError, match="the clock or random numbers of"):
        elman.scan(step, normal(3, K), normal(4, 3, K), engine="reference")


def test_a_permutation_drawn_is_no_constant():
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h[:, torch.randperm(K)] + x)
        return h, h

    with pytest.raises(StepError, match="randperm"):
        elman.scan(step, normal(3, K), normal(4, 3, K), engine="reference")


@on_engines
def test_a_script_that_another_program_runs(engine, monkeypatch):
    """Its `__main__` is that program, a file of Python's by `python -m cProfile`, while the globals
    of its functions are its own: they are walked."""
    _is_library.cache_clear()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", os.__file__, raising=False)
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    names["W"] = nn.Linear(5, 3, dtype=F64)
    exec("def step(h, x):\n    h = torch.tanh(W(torch.cat([x, h], -1)))\n    return h, h", names)
    h, x = torch.zeros(4, 3, dtype=F64), torch.randn(6, 4, 2, dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = elman.scan(names["step"], h, x, engine=engine)
    want = plain_scan(names["step"], h, x)
    assert torch.allclose(got[1], want[1])
