"""Other libraries as contestants; each is absent, with the reason, where it is not installed."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.steps import STEPS, TORCH, Ops
from benchmarks.problem import Contestant, Problem, Results, gradients, named

_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
_ONNX_GATES = {  # torch's gates in ONNX's order, and ONNX's name of the cell
    "rnn": ("RNN", (0,)),
    "gru": ("GRU", (1, 0, 2)),  # r z n -> z r h
    "lstm": ("LSTM", (0, 3, 1, 2)),  # i f g o -> i o f c
}
_OPSET = 14


def library(*names: str) -> tuple[Any, ...] | str:
    """Modules of a library, or that it is not installed."""
    try:
        return tuple(import_module(name) for name in names)
    except ImportError as error:
        return f"{error.name} is not installed"


def jax_scan(problem: Problem) -> Contestant | str:
    """``jax.lax.scan`` over the step, jitted as a whole; gradients by ``jax.vjp``."""
    modules = library("jax", "jax.numpy")
    case = problem.case
    if isinstance(modules, str):
        return modules
    if case.cell not in STEPS:
        return f"no step is written for {case.cell}"
    if case.dtype != "float32":
        return "JAX computes in float32 unless told otherwise for the whole process"
    jax, jnp = modules
    step, states = STEPS[case.cell]
    ops = Ops(jax.nn.sigmoid, jnp.tanh, partial(jnp.split, axis=-1))

    def forward(x: Any, W: Any, R: Any, b: Any, d: Any) -> tuple[Any, Any]:
        start = (jnp.zeros((case.B, case.H), x.dtype),) * states

        def step_once(carry: Any, p: Any) -> tuple[Any, Any]:
            after = step(ops, p, carry, R, d)
            return after, after[0]

        last, output = jax.lax.scan(step_once, start, x @ W.T + b)
        return output, last

    def training(x: Any, W: Any, R: Any, b: Any, d: Any, dy: Any) -> tuple[Any, Any, Any]:
        (output, last), pull = jax.vjp(forward, x, W, R, b, d)
        return output, last, pull((dy, jax.tree.map(jnp.zeros_like, last)))

    arrays = [jnp.asarray(v.numpy()) for v in (problem.x, *(problem.weights[k] for k in _WEIGHTS))]
    train = case.measure.backward
    compiled = jax.jit(training if train else forward)
    arguments = [*arrays, jnp.asarray(problem.dy.numpy())] if train else arrays

    def run() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    def results() -> Results:
        output, last, *pulled = run()
        modules = named(tensor_of(output), tuple(map(tensor_of, last)))
        if pulled:
            modules |= gradients(("x", *_WEIGHTS), map(tensor_of, pulled[0]))
        return modules

    return Contestant(run, results, ("x", *_WEIGHTS) if train else (), lambda: facts_of("jax"))


def tensor_of(value: Any) -> Tensor:
    return torch.from_numpy(np.array(value))


def facts_of(library: str) -> dict[str, Any]:
    return {"version": version(library)}


def onnxruntime(problem: Problem) -> Contestant | str:
    """ONNX Runtime's own kernel of the cell, forward only."""
    modules = library("onnx", "onnxruntime")
    case = problem.case
    if isinstance(modules, str):
        return modules
    if case.measure.backward:
        return "it only runs forward"
    if case.cell not in _ONNX_GATES or case.dtype != "float32":
        return f"it has no {case.cell} in {case.dtype}"
    onnx, ort = modules
    options = ort.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = ort.InferenceSession(
        _model(onnx, problem), options, providers=["CPUExecutionProvider"]
    )
    feed = {"X": problem.x.numpy()}

    def run() -> Any:
        return session.run(None, feed)

    def results() -> Results:
        output, *last = run()
        return named(tensor_of(output).squeeze(1), tuple(tensor_of(state) for state in last))

    return Contestant(run, results, (), lambda: facts_of("onnxruntime"))


def _model(onnx: Any, problem: Problem) -> bytes:
    """One node with the problem's weights as constants."""
    case, helper = problem.case, onnx.helper
    op, order = _ONNX_GATES[case.cell]

    def gates(name: str) -> Any:
        blocks = problem.weights[name].chunk(len(order))
        return torch.cat([blocks[k] for k in order])

    biases = torch.cat([gates("bias_ih_l0"), gates("bias_hh_l0")])
    values = {"W": gates("weight_ih_l0"), "R": gates("weight_hh_l0"), "b": biases}
    constants = [
        onnx.numpy_helper.from_array(value.unsqueeze(0).numpy(), name)
        for name, value in values.items()
    ]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if case.cell == "lstm" else 2]
    extra = {"linear_before_reset": 1} if case.cell == "gru" else {}
    node = helper.make_node(op, ["X", "W", "R", "b"], outputs, hidden_size=case.H, **extra)
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        case.cell,
        [helper.make_tensor_value_info("X", kind, [case.T, case.B, case.input_size])],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        constants,
    )
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def compiled_step(x: Tensor, w: Any, cell: str, compiled: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A loop over a step compiled by torch.compile."""
    _, states = STEPS[cell]
    W, R, b, d = (w[name] for name in _WEIGHTS)
    carry = (x.new_zeros(x.shape[1], R.shape[1]),) * states
    outputs: list[Tensor] = []
    for p in torch.nn.functional.linear(x, W, b).unbind(0):
        carry = compiled(p, carry, R, d)
        outputs.append(carry[0])
    return torch.stack(outputs), carry


def compile_step(cell: str) -> Any:
    """The step of a cell under torch.compile."""
    step, _ = STEPS[cell]

    def compiled(p: Tensor, carry: tuple[Tensor, ...], R: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        return step(TORCH, p, carry, R, d)

    return torch.compile(compiled)
