"""Triton's kernels without a GPU: interpreted in one process, compiled in another."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

if (sys.platform, platform.machine()) == ("linux", "x86_64") and os.environ.get("CI"):
    import triton  # where there is a wheel, nothing may be skipped
else:
    triton = pytest.importorskip("triton")


if triton.knobs.runtime.interpret:
    from triton.runtime import interpreter

    _convert: Any = interpreter._convert_float

    def _rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        """The interpreter cuts float32 off to bfloat16; a GPU rounds it to the nearest."""
        if (str(source), str(target)) != ("fp32", "bf16"):
            return _convert(values, source, target, mode)
        bits = np.ascontiguousarray(values).view(np.uint32)
        up = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
        return (np.where(np.isnan(values), bits, up) >> 16).astype(np.uint16).reshape(values.shape)

    interpreter._convert_float = _rounded

    _patching: Any = interpreter.InterpretedFunction.__call__
    _known: set[Any] = set()  # device functions that have been called before

    def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A device function. Around it the kernel has patched triton.language already; Triton looks
        through all of it at every call again, which takes a third of the time. What functions of
        Triton's own library see beside it is patched at their first call, for good."""
        if self.fn not in _known:
            _known.add(self.fn)
            return _patching(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = _called


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.interpreted, id="interpreted"),
        pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
    ]
)
def device(request) -> Iterator[str]:
    """Where kernels run, the same tests twice: in the interpreter, and on a GPU where there is one.

    float32 is multiplied as IEEE has it; tests of tf32 say so themselves.
    """
    switches: Any = (torch.backends.cudnn.rnn, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    yield request.param
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = value


def pytest_collection_modifyitems(items):
    """Triton decides when it is imported: what it is not imported for is skipped, with a reason."""
    interpreted = bool(triton.knobs.runtime.interpret)
    reason = "Triton interprets in this process" if interpreted else "needs TRITON_INTERPRET=1"
    for item in items:
        ours = "engines/triton/" in item.path.as_posix()
        if ours and interpreted != bool(item.get_closest_marker("interpreted")):
            item.add_marker(pytest.mark.skip(reason=reason))
