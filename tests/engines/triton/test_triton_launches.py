"""What a compiled kernel is launched with, compiled for a GPU that is not there; nothing runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from elman import cells
from elman.engines.call import Call, Cotangents
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.engine import PRICES
from elman.engines.triton.run.kernel import TritonKernel
from elman.plan.build import program
from helpers import Sizes, job_of, random_case


class _Launcher:
    """Keeps what it is given instead of launching it."""

    seen: list[tuple[Any, ...]]

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *given: Any) -> None:
        self.seen.append((self.metadata, given))


class _Driver:
    """A device without a GPU."""

    launcher_cls = _Launcher

    def __init__(self) -> None:
        self.utils = self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10}

    def load_binary(self, *binary: Any) -> tuple[int, int, int, int, int]:
        return 1, 2, 32, 0, 1024


@pytest.mark.parametrize(
    "schedule, loops, programs", [("loop/16/4", 2, 1), ("grid/16/2/3", 2, 2), ("steps", 0, 0)]
)
def test_launches(
    schedule: str, loops: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grid, stream and cooperation of every kernel of a training step; the caller's tensors are
    given as they lie."""
    monkeypatch.setattr(_Launcher, "seen", [], raising=False)
    monkeypatch.setattr(driver, "_active", _Driver())
    case = random_case(cells.gru, Sizes(T=3, B=3, I=24, H=5))
    job = job_of(case)
    of = program(job.pair, job.spec, PRICES)
    kernel = TritonKernel(job, of, TritonSchedule.parse(schedule))
    call = Call(*(tuple(v.values()) for v in (case.inputs, case.states, case.weights)))
    saved = kernel.forward(call).saved
    kernel.backward(call, saved, Cotangents(case.d_output, (None,)), False)
    launches = [(metadata, *given[:4]) for metadata, given in _Launcher.seen]
    assert {stream for *_, stream in launches} == {7}
    found = [launch for launch in launches if launch[0].name == "loop"]
    assert len(found) == loops
    for metadata, *grid, _ in found:
        assert grid == [programs, 1, 1]
        assert metadata.launch_cooperative_grid == (programs > 1)
    rows = [launch for launch in launches if launch[0].name == "rows"]
    assert len(rows) == len(launches) - loops >= (2 if loops else 2 * 3)
    assert all(grid == [1, 1, 1] for _, *grid, _ in rows)
    addresses = {
        value.data_ptr()
        for _, given in _Launcher.seen
        for value in given
        if isinstance(value, torch.Tensor)
    }
    assert addresses >= {case.d_output.data_ptr(), *(value.data_ptr() for value in saved)}
