"""Modules exported to C, compiled strictly and run, beside engine reference."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess

import torch

from elman.export import to_c
from helpers import forced

CC = shutil.which("gcc") or shutil.which("cc")
STRICT = "-O2 -std=c99 -pedantic -Wall -Wextra -Wshadow -Werror -ffreestanding -fPIC -shared"


def library(folder, name="model", lanes=0, flags=""):
    """The C of a folder, compiled strictly; its functions by ctypes."""
    out = folder / f"{name}{lanes}.so"
    words = [CC, *STRICT.split(), *flags.split(), str(folder / f"{name}.c"), "-o", str(out)]
    if lanes:
        words.append(f"-DLANES={lanes}")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(out))


def by_c(module, folder, inputs, lanes=0, name="model"):
    """What the exported C makes of inputs [T, n], step by step."""
    made = to_c(module, folder, name)
    own = library(folder, name, lanes, "" if lanes == 16 else "-O0")  # a third of the time
    state = torch.zeros(getattr(own, f"{name}_bytes")(), dtype=torch.uint8)
    out = torch.zeros(len(inputs[0]), made.output)
    at = [ctypes.c_void_p(state.data_ptr())]
    getattr(own, f"{name}_init")(*at)
    step = getattr(own, f"{name}_step")
    steps = len(module.runtime.signature.inputs)
    for t in range(len(out)):
        rows = [x[t].contiguous() if k < steps else x for k, x in enumerate(inputs)]
        step(*at, *(ctypes.c_void_p(v.data_ptr()) for v in [*rows, out[t]]))
    return out


def drawn(module, T=5):
    source = torch.Generator().manual_seed(0)
    runtime = module.runtime
    moving = [torch.randn(T, *shape, generator=source) for shape in runtime.input_sizes]
    return moving + [torch.randn(shape, generator=source) for shape in runtime.static_sizes]


def expected(module, inputs):
    count = len(module.runtime.signature.inputs)
    given = tuple(x.unsqueeze(1) for x in inputs[:count])
    once = tuple(x.unsqueeze(0) for x in inputs[count:])
    more = {"static": once if len(once) > 1 else once[0]} if once else {}
    with torch.no_grad(), forced("reference"):
        out = module.eval()(given if len(given) > 1 else given[0], **more)[0]
    outputs = out if isinstance(out, tuple) else (out,)
    heads = math.prod(module.runtime.head_axis)
    rows = [value.reshape(len(value), heads, -1) for value in outputs]
    return torch.cat(rows, -1).flatten(1)


def check(module, folder, lanes=0, T=5, atol=1e-5):
    inputs = drawn(module, T)
    got = by_c(module, folder, inputs, lanes)
    torch.testing.assert_close(got, expected(module, inputs), rtol=1e-4, atol=atol)
