"""What a compiled kernel is launched with: by Triton in a call that decides, by a replay in later
ones. Compiled for a GPU that is not there; nothing runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from elman import cells
from elman.engines.call import Call, Cotangents
from elman.engines.triton.engine import PRICES
from elman.engines.triton.kernel import TritonKernel
from elman.engines.triton.schedule import TritonSchedule
from elman.plan.build import program
from helpers import Sizes, job_of, random_case


class _Launcher:
    """Keeps what it is given instead of launching it."""

    seen: list[tuple[Any, ...]]

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *given: Any) -> None:
        self.seen.append(given)


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
    "cell, schedule",
    [(cells.gru, "loop/16/4/1"), (cells.lstm, "loop/16/4/1"), (cells.gru, "grid/16/2/3/1")],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_launches(cell: Any, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same grid, stream and numbers; addresses where it had tensors, of the same type."""
    monkeypatch.setattr(_Launcher, "seen", [], raising=False)
    monkeypatch.setattr(driver, "_active", _Driver())
    case = random_case(cell, Sizes(T=3, B=3, I=24, H=5))
    job = job_of(case)
    of = program(job.pair, job.spec, PRICES)
    kernel = TritonKernel(job, of, TritonSchedule.parse(schedule))
    call = Call(*(tuple(v.values()) for v in (case.inputs, case.states, case.weights)))
    found = []
    for _ in range(3):
        _Launcher.seen = []
        saved = kernel.forward(call).saved
        kernel.backward(call, saved, Cotangents(case.d_output, (None,) * len(call.states)), False)
        found.append(_Launcher.seen)
    assert kernel.forwards.replayed == kernel.backwards.replayed == 1
    decided, _, replayed = found
    assert len(decided) == len(replayed) > 0
    given = {value.data_ptr() for value in call.tensors}
    for one, other in zip(decided, replayed, strict=True):
        assert len(one) == len(other)
        for value, again in zip(one, other, strict=True):  # of a launch, its metadata too
            if not isinstance(value, torch.Tensor):
                assert getattr(value, "data", value) == getattr(again, "data", again)
                continue
            assert isinstance(again, int)
            assert again % 16 == value.data_ptr() % 16
            if value.data_ptr() in given:
                assert again == value.data_ptr()
