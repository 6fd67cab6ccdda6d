"""One layer in one direction: a kernel is chosen once for each kind of call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from elman import compiler
from elman.engines.arrays import Arrays
from elman.engines.base import Job, Kernel
from elman.engines.call import Call
from elman.engines.checkpoint import Checkpointed
from elman.engines.packed import for_layout
from elman.errors import EngineError, InputError, ShapeError, VerifyError
from elman.frontend.cell import Cell
from elman.ir.evaluate import evaluate
from elman.ir.graph import walk
from elman.ir.types import shape_size
from elman.nn.autograd.derived import derive
from elman.nn.autograd.function import BoundKernel
from elman.nn.autograd.second_order import Differentiable
from elman.nn.engine_choice import traces_onnx
from elman.nn.execute.onnx import exported_kernel
from elman.nn.options.base import RULES
from elman.plan.spec import USUAL, PlanOptions, Spec
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import first_engine, kernel_of
from elman.tuning.precision import effective_precision, matrix_bytes
from elman.tuning.request import Request, Rule, bucket, nearest
from elman.tuning.verification import compile_verified

BENCHMARKED = ("benchmarked", "remembered")
Rules = tuple[Rule, ...]
Formula = tuple[Cell, int, dict[str, int]]  # of a layer: cell, size of its first state, other dims


def sizes_for_choosing(call: Call) -> tuple[int, int]:
    """T and B that a choice depends on; B is at least 1; of packed sequences their steps and mean
    batch."""
    if call.packed is not None:
        return call.packed.steps, call.packed.mean_batch
    steps, batch, _ = call.sizes
    return steps, max(1, batch)


class Runner:
    """Runs a cell over a sequence, on the engine that is asked for or that benchmarked best.

    Choices are kept per request. Nothing of them is copied or pickled: a copy chooses anew.

    Attributes:
        cell, dims, options: as given; the dims in order of their names.
        holds: whether values are computed once per sequence, without an option of a call.
        weight_shapes: in the cell's order.
    """

    def __init__(self, cell: Cell, dims: Mapping[str, int], options: PlanOptions = USUAL) -> None:
        self.cell = cell
        self.dims = tuple(sorted(dims.items()))
        self.options = options
        self.holds = compiler.holds(cell)
        self.weight_shapes = [torch.Size(shape_size(entry.shape, dims)) for entry in cell.weights]
        self._matrix_bytes = matrix_bytes(self.weight_shapes)
        self._chosen: dict[Request, Choice] = {}
        self._pinned: dict[str, Choice] = {}
        self._packs: dict[Request, Request] = {}
        self._oracles: dict[Rules, Kernel] = {}

    def __reduce__(self) -> Any:
        return Runner, (self.cell, dict(self.dims), self.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        return Runner(self.cell, dict(self.dims), self.options)

    def bind(self, call: Call, request: Request, between: int = 0) -> BoundKernel:
        """The kernel of such a call, chosen when it is first asked for.

        Args:
            call: without static inputs (:meth:`precompute_static`).
            request: of the call.
            between: steps between two kept states; 0: everything is kept.

        Raises:
            EngineError: the named engine cannot run this.
        """
        steps, batch = sizes_for_choosing(call)
        choice = self.choice(request, min(steps, between or steps), batch)
        kernel, rules = for_layout(choice.kernel, call.packed), request.rules
        if not between or not request.training:
            return BoundKernel(kernel, lambda: self.oracle(rules), request.training)
        derivable = kernel if kernel.differentiable else None
        spans = Checkpointed(kernel, between, [t.requires_grad for t in call.tensors])
        return BoundKernel(spans, lambda: derivable or self.oracle(rules), True)

    def precompute_static(self, call: Call, rules: Rules = (), compute: bool = True) -> Call:
        """Replace static inputs by further states, which hold what depends on them and on weights
        alone.

        Args:
            call: as the cell takes it: static inputs [B, n] follow its inputs; then the inputs of
                the rules.
            rules: of the options in use.
            compute: False: the static inputs themselves stand for these states.
        """
        if not compiler.holds(self.cell, rules):
            return call
        graph, (first, count) = self.cell.graph, (len(self.cell.inputs), len(self.cell.static))
        static = call.inputs[first : first + count]
        inputs = (*call.inputs[:first], *call.inputs[first + count :])
        if not compute:
            return call._replace(inputs=inputs, states=(*call.states, *static))
        bindings = dict(zip(graph.inputs[first:], static, strict=True))
        bindings.update(zip(compiler.graph_of(self.cell, rules).weights, call.weights, strict=True))
        static_graph = compiler.once_of(self.cell, rules)
        like, batch = call.weights[0] if call.weights else static[0], call.sizes[1]
        values = evaluate(Arrays(like.dtype, like.device), static_graph, bindings, dict(self.dims))
        values = [  # of weights alone it is the same for each sample
            value
            if any(leaf.op == "input" for leaf in walk((node,)))
            else value.expand(batch, *value.shape)
            for node, value in zip(static_graph, values, strict=True)
        ]
        if call.stacked:
            values = tuple([value.unsqueeze(0) for value in values])
        return call._replace(inputs=inputs, states=(*call.states, *values))

    def request(self, call: Call, flows: Sequence[bool], engine: str, rules: Rules = ()) -> Request:
        """Build the request of a call.

        Args:
            call: inputs, states and weights in declared order, then the inputs of the rules; its
                first input may be another tensor of the same T, B, dtype and device.
            flows: for each input, whether it requires a gradient.
            engine: a name, or ``auto``.
            rules: of the options in use.

        Raises:
            ShapeError, InputError: a weight is not what the cell declares.
        """
        like = call.inputs[0]
        dtype, device = like.dtype, like.device
        for weight, shape in zip(call.weights, self.weight_shapes):
            if weight.shape != shape or weight.dtype is not dtype or weight.device != device:
                self._refuse_weights(call.weights, like)
        wants, training = 0, False
        if torch.is_grad_enabled():
            for flow in flows:
                wants += wants + flow
            for tensor in call.weights:
                wants += wants + tensor.requires_grad
            training = wants > 0 or any(state.requires_grad for state in call.states)
        steps, batch = like.shape[:2] if call.packed is None else sizes_for_choosing(call)
        request = Request(
            dtype,
            device.type,
            wants,
            training,
            bucket(steps),
            bucket(batch),
            torch.are_deterministic_algorithms_enabled(),
            engine,
            rules,
            self.precision(dtype, device.type, engine, batch)[0],
        )
        if call.packed is None or engine != "auto":
            return request
        if (
            request not in self._packs
        ):  # an engine that runs packed rows as they lie, if there is one
            name = first_engine(self.job(request), lambda engine: engine.packs)
            self._packs[request] = request._replace(engine=name or "auto")
        return self._packs[request]

    def precision(
        self, dtype: torch.dtype, device: str, engine: str, batch: int
    ) -> tuple[str, str | None]:
        """The precision of the layer's products, and why it is not the one asked for, if it is
        not (:func:`elman.tuning.precision.effective_precision`)."""
        weights = self._matrix_bytes
        return effective_precision(self.options, dtype, device, engine, batch, weights)

    def choice(self, request: Request, steps: int, batch: int) -> Choice:
        """The choice for such a call, made at the first one."""
        choice = self._chosen.get(request)
        if choice is None:
            choice = self._chosen[request] = self._choose(request, steps, batch)
        return choice

    def chosen(self, request: Request) -> Choice | None:
        """The choice for such a call, if it has been made or pinned."""
        return self._pinned.get(self.show(request)) or self._chosen.get(request)

    def oracle(self, rules: Rules = ()) -> Kernel:
        """A differentiable kernel of the step, for every transform, dtype and device."""
        if traces_onnx():
            return exported_kernel(self.cell, self.dims, rules)
        oracle = self._oracles.get(rules)
        if oracle is None:
            reference = kernel_of(compiler.job(self.cell, Spec(self.dims), rules), "reference")
            oracle = Differentiable(derive(self.cell, self.dims, rules), reference)
            self._oracles[rules] = oracle
        return oracle

    @property
    def choices(self) -> dict[str, Choice]:
        """Choices made or pinned so far, by :meth:`show`; for records and ``explain``."""
        by_request = {self.show(request): choice for request, choice in self._chosen.items()}
        return self._pinned | by_request

    @property
    def trains_by_steps(self) -> bool:
        """Whether training calls came, and each had a single step."""
        return {request.steps for request in self._chosen if request.training} == {bucket(1)}

    def show(self, request: Request) -> str:
        """A request as text."""
        return request.show(self.names(request.rules))

    def names(self, rules: Rules = ()) -> list[str]:
        """Names of the inputs and weights, in declared order."""
        graph = compiler.graph_of(self.cell, rules)
        return [leaf.name for leaf in (*graph.inputs, *graph.weights)]

    def job(self, request: Request) -> Job:
        """Build the job to compile for such a call."""
        spec = request.spec(self.dims, self.names(request.rules), self.options)
        return compiler.job(self.cell, spec, request.rules)

    def pin(self, request_text: str, record: Mapping[str, Any]) -> str | None:
        """Use exactly what a record of :func:`elman.nn.choices` says; else return why not."""
        try:
            words = [
                word.removeprefix("+") for word in request_text.split() if word.startswith("+")
            ]
            rules = tuple(RULES[word] for word in words if word in RULES)
            request = Request.parse(request_text, self.names(rules), RULES)
            name, schedule = str(record["engine"]), str(record["schedule"])
            if request.engine not in ("auto", name):
                raise ValueError(f"engine {name} was not asked for")
            kernel = compile_verified(self.job(request), name, schedule)
        except (EngineError, AttributeError, KeyError, ValueError) as error:
            return f"{request_text}: {error}"
        current = {**kernel.describe(), "engine": name, "schedule": schedule}
        changed = [
            k for k in sorted(current.keys() | record.keys()) if current.get(k) != record.get(k)
        ]
        if changed:
            return f"{request_text}: {', '.join(changed)} of engine {name} is not what it was"
        self._pinned[request_text] = Choice(name, schedule, kernel, "pinned")
        self._chosen.clear()
        return None

    def _choose(self, request: Request, steps: int, batch: int) -> Choice:
        pinned = self.chosen(request)
        if pinned is not None:
            return pinned
        benchmarked = {r: c for r, c in self._chosen.items() if c.why in BENCHMARKED}
        near = nearest(benchmarked, request)
        if near is not None:
            return replace(near, why="near")
        return choose(self.job(request), steps, batch, request.engine)

    def _refuse_weights(self, weights: Sequence[Tensor], like: Tensor) -> NoReturn:
        """Raise the error for weights that do not fit: a kernel reads memory unchecked."""
        for entry, weight, shape in zip(
            self.cell.weights, weights, self.weight_shapes, strict=True
        ):
            if weight.shape != shape:
                raise ShapeError(f"weight {entry} is {list(weight.shape)}, not {list(shape)}")
            if weight.dtype != like.dtype or weight.device != like.device:
                raise InputError(
                    f"weight {entry} is {weight.dtype} on {weight.device}, "
                    f"but the input is {like.dtype} on {like.device}"
                )
        raise VerifyError("no weight was wrong after all")
