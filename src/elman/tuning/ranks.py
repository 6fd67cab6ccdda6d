"""One choice for all processes of a distributed run: who asks first benchmarks, the others wait.

Passed through the store of torch's default process group, not by a collective operation: processes
may come to a choice in any order, and some may never come.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist

from elman.errors import warn_once
from elman.plan.allreduce import INTERCONNECTS, Interconnect
from elman.torch_internals import default_store
from elman.tuning.cache import Key

WAIT_S = 600.0  # then a process benchmarks by itself
_POLL_S = 0.005
_OWN = ("machine",)  # facts that may differ between the processes of one run
_after: ContextVar[bool] = ContextVar("gradients are sent after the backward", default=False)


def once_for_all(key: Key, work: Callable[[], Any]) -> Any:
    """Do work on the first process of a run that asks for it; the others get what it found.

    Without a process group, or with one process, this is ``work()``.

    Args:
        key: what the result depends on, JSON-able; what it says of the machine is left out.
        work: what to do; its result is JSON-able.
    """
    store = _store()
    if store is None:
        return work()
    common = {name: value for name, value in key.items() if name not in _OWN}
    digest = hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:32]
    claim, place, mine = f"elman/{digest}/who", f"elman/{digest}/found", uuid.uuid4().hex
    if store.compare_set(claim, "", mine).decode() == mine:
        found = None
        try:
            found = work()
        finally:  # also if it failed: then the others work by themselves
            store.set(place, json.dumps(found))
        return found
    found = _awaited(store, place)
    return work() if found is None else found


def workers() -> int:
    """Processes of the default process group; 1 without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


@contextmanager
def sending_after_backward() -> Iterator[None]:
    """Calls whose gradients nobody sends before the backward has ended."""
    before = _after.set(True)
    try:
        yield
    finally:
        _after.reset(before)


def receivers() -> int:
    """Processes that may have gradients sent while the backward goes on, this one included."""
    return 1 if _after.get() else workers()


def interconnect() -> Interconnect:
    """What connects the processes, roughly: by the kind of the process group."""
    return INTERCONNECTS["nvlink" if dist.get_backend() == "nccl" else "ethernet"]


def _store() -> Any:
    """The store of the default process group; None if there is no other process to share with."""
    if workers() == 1 or dist.get_backend() == "fake":
        return None
    return default_store()


def _awaited(store: Any, place: str) -> Any:
    """What another process found; None if it could not, or does not answer."""
    end = time.monotonic() + WAIT_S
    while not store.check([place]):
        if time.monotonic() > end:
            text = f"no other process has said within {WAIT_S:.0f} s which engine is fastest"
            warn_once(f"{text}: this one benchmarks by itself", place)
            return None
        time.sleep(_POLL_S)
    return json.loads(store.get(place))
