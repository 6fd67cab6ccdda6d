"""One step of exported C beside ONNX Runtime's, both called from Python, alternating.

    python -m benchmarks.scripts.export [--rounds 15]      needs the extra bench

A module's step as C99 (`elman.export.to_c`, gcc -O3 -march=native, loaded by ctypes), and its
ONNX model (`elman.export.to_onnx`), T = 1, B = 1, one thread: called with arrays, as most do, and
with inputs and outputs bound once, states fed back. Microseconds of a call, the call included: the
median of the rounds. The three outputs are compared first.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime
import torch

import elman
from elman.export import to_c, to_onnx

MODULES = {f"{name} {size}": (name, size) for size in (32, 128, 512) for name in ("GRU", "LSTM")}
CALLS = 1000  # of one timing


def by_c(net: torch.nn.Module, x: torch.Tensor, folder: Path) -> Callable[[], torch.Tensor]:
    """A call of the C step; the output is an array of the caller's."""
    made = to_c(net, folder, "model")
    flags = ["-O3", "-march=native", "-std=c99", "-shared", "-fPIC"]
    library = folder / "model.so"
    subprocess.run(["gcc", *flags, folder / "model.c", "-o", library], check=True)
    code = ctypes.CDLL(str(library))
    state, y = torch.zeros(made.state + 64), torch.zeros(made.output)
    code.model_init(ctypes.c_void_p(state.data_ptr()))
    code.model_step.argtypes = [ctypes.c_void_p] * 3
    numbers = [state, x, y]
    given = [value.data_ptr() for value in numbers]

    def call() -> torch.Tensor:
        code.model_step(*given)
        return numbers[-1]

    return call


def session(net: torch.nn.Module, folder: Path) -> onnxruntime.InferenceSession:
    """Of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = folder / "model.onnx"
    to_onnx(net, model)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def by_arrays(own: onnxruntime.InferenceSession, x: torch.Tensor, size: int) -> Callable:
    """A call with arrays; states are those that it gave before."""
    states = [i.name for i in own.get_overridable_initializers()]
    given: dict[str, Any] = {name: torch.zeros(1, 1, size).numpy() for name in states}
    given["x"] = x.reshape(1, 1, -1).numpy()

    def call() -> torch.Tensor:
        out, *last = own.run(None, given)
        given.update(zip(states, last, strict=True))
        return torch.from_numpy(out).flatten()

    return call


def by_binding(own: onnxruntime.InferenceSession, x: torch.Tensor, size: int) -> Callable:
    """A call whose inputs and outputs are bound once: two halves take turns."""
    given = [*own.get_inputs(), *own.get_overridable_initializers()]
    inputs, outputs = ([v.name for v in found] for found in (given, own.get_outputs()))
    halves = [[torch.zeros(1, 1, size) for _ in inputs[1:]] for _ in range(2)]
    y = torch.zeros(1, 1, size)
    bound = []
    for turn in range(2):
        binding = own.io_binding()
        pairs = [(inputs[0], x.reshape(1, 1, -1)), *zip(inputs[1:], halves[turn], strict=True)]
        for name, value in pairs:
            binding.bind_input(name, "cpu", 0, "float32", tuple(value.shape), value.data_ptr())
        for name, value in zip(outputs, [y, *halves[1 - turn]], strict=True):
            binding.bind_output(name, "cpu", 0, "float32", tuple(value.shape), value.data_ptr())
        bound.append(binding)
    calls = 0

    def call() -> torch.Tensor:
        nonlocal calls
        own.run_with_iobinding(bound[calls % len(halves)])  # whose memory is held here
        calls += 1
        return y.flatten()

    return call


def microseconds(call: Callable[[], object]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    """A row per module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print("| step, B = 1 | C, us | ONNX Runtime, arrays | bound | C / bound |\n|--|--|--|--|--|")
    for title, (name, size) in MODULES.items():
        net, x = getattr(elman, name)(size, size).eval(), torch.randn(size)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            own = session(net, folder)
            ways = [by_c(net, x, folder), by_arrays(own, x, size), by_binding(own, x, size)]
            for _ in range(3):
                first, *others = [way().clone() for way in ways]
                for other in others:
                    torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)
            times = list(
                zip(*([microseconds(w) for w in ways] for _ in range(rounds)), strict=True)
            )
        c, arrays, bound = map(median, times)
        print(f"| {title} | {c:.2f} | {arrays:.1f} | {bound:.1f} | {c / bound:.2f} |", flush=True)


if __name__ == "__main__":
    main()
