"""Triton's kernels without a GPU: interpreted in one process, compiled in another."""

from __future__ import annotations

import os
import platform
import sys

import pytest

if (sys.platform, platform.machine()) == ("linux", "x86_64") and os.environ.get("CI"):
    import triton  # where there is a wheel, nothing may be skipped
else:
    triton = pytest.importorskip("triton")


def pytest_collection_modifyitems(items):
    """Triton decides when it is imported: what it is not imported for is skipped, with a reason."""
    interpreted = bool(triton.knobs.runtime.interpret)
    reason = "Triton interprets in this process" if interpreted else "needs TRITON_INTERPRET=1"
    for item in items:
        ours = "engines/triton/" in item.path.as_posix()
        if ours and interpreted != bool(item.get_closest_marker("interpreted")):
            item.add_marker(pytest.mark.skip(reason=reason))
