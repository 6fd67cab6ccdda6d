"""Triton's kernels without a GPU: interpreted in one process, compiled in another."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

if (sys.platform, platform.machine()) == ("linux", "x86_64") and os.environ.get("CI"):
    import triton  # where there is a wheel, nothing may be skipped
else:
    triton = pytest.importorskip("triton")


if triton.knobs.runtime.interpret:
    import interpreter  # noqa: F401


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
        if ours and interpreted:  # numpy's, of Triton 3.6
            item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an array with ndim"))
        if ours and interpreted != bool(item.get_closest_marker("interpreted")):
            item.add_marker(pytest.mark.skip(reason=reason))
