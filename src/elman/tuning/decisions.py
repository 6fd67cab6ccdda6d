"""Evidence for a choice: of this process, else from disk, else benchmarked now; in a distributed
run once for all processes.

On disk there is one small JSON file per key, written atomically, so that no lock is needed: a
reader sees the old file or the new one. A file that cannot be read, parsed or trusted is ignored; a
file that cannot be written is not an error, because the next process can measure again.

Processes of a distributed run pass the choice through the store of torch's default process group,
not by a collective operation: they may reach a choice in any order, and some may never reach it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch.distributed as dist

from elman.errors import warn_once
from elman.files import read_file, write_atomically
from elman.folders import cache_folder, is_shared, private_folder
from elman.torch_internals import default_store
from elman.tuning.contest import Evidence

FORMAT = 1  # of the files; others are ignored
_LARGEST = 1 << 20  # (bytes) limit of an entry, against damaged or foreign files

Key = dict[str, Any]


def _path(key: Key) -> Path:
    text = json.dumps(key, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    return cache_folder() / "tuning" / f"{name}.json"


def _usable(folder: Path) -> bool:
    """Whether records can be kept in a folder. Warns once if other users can write to it, whose
    records are not used."""
    if private_folder(folder):
        return True
    with contextlib.suppress(OSError):
        if is_shared(folder):
            text = f"elman uses no records of benchmarks in {folder}: others can write to it"
            warn_once(f"{text}. Each process measures anew; chmod 700 it, or set ELMAN_CACHE.")
    return False


def recall(key: Key) -> dict[str, Any] | None:
    """The value stored under a key, or None; the caller checks its contents."""
    try:
        path = _path(key)
        if not _usable(path.parent):
            return None
        entry = json.loads(read_file(path, _LARGEST))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home, or JSON nested too deeply
        return None
    if not isinstance(entry, dict) or entry.get("format") != FORMAT or entry.get("key") != key:
        return None
    value = entry.get("value")
    return value if isinstance(value, dict) else None


def remember(key: Key, value: dict[str, Any]) -> None:
    """Store a JSON-able value under a key; do nothing if the folder cannot be written."""
    try:
        path = _path(key)
    except RuntimeError:  # no home folder
        return
    if not _usable(path.parent):
        return
    text = json.dumps({"format": FORMAT, "key": key, "value": value}, sort_keys=True)
    with contextlib.suppress(OSError):
        write_atomically(path, text.encode(), private=True)


WAIT_S = 600.0  # (s) most time to wait for another process's result before benchmarking here
_POLL_S = 0.005  # (s) between two looks for the result
_LOCAL_FACTS = ("machine",)  # facts that may differ between the processes of one run
_after: ContextVar[bool] = ContextVar("gradients are sent after the backward", default=False)


def once_for_all(key: Key, work: Callable[[], Any]) -> Any:
    """Do work on the first process of a run that calls this; the others get its result.

    Without a process group, or with one process, this is ``work()``.

    Args:
        key: all facts that the result depends on, JSON-able; those of the machine are left out.
        work: the work; its result is JSON-able.
    """
    store = _store()
    if store is None:
        return work()
    # each process may have a machine of its own, but all must choose the same engine
    common = {name: value for name, value in key.items() if name not in _LOCAL_FACTS}
    digest = hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:32]
    claim, place, token = f"elman/{digest}/who", f"elman/{digest}/found", uuid.uuid4().hex
    if store.compare_set(claim, "", token).decode() == token:
        result = None
        try:
            result = work()
        finally:  # also after a failure: the others then do the work themselves
            store.set(place, json.dumps(result))
        return result
    result = _await_result(store, place)
    return work() if result is None else result


def workers() -> int:
    """Number of processes of the default process group; 1 without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


@contextmanager
def sending_after_backward() -> Iterator[None]:
    """Context of calls whose gradients are sent after the backward, not during it."""
    before = _after.set(True)
    try:
        yield
    finally:
        _after.reset(before)


def receivers() -> int:
    """Number of processes among which gradients may be sent during the backward; 1: none are."""
    return 1 if _after.get() else workers()


def _store() -> Any:
    """The store of the default process group; None if this is the only process."""
    if workers() == 1 or dist.get_backend() == "fake":
        return None
    return default_store()


def _await_result(store: Any, place: str) -> Any:
    """Wait for another process's result; None if it failed, or does not answer."""
    end = time.monotonic() + WAIT_S
    while not store.check([place]):
        if time.monotonic() > end:
            text = f"no other process has said within {WAIT_S:.0f} s which engine is fastest"
            warn_once(f"{text}: this one benchmarks by itself", place)
            return None
        time.sleep(_POLL_S)
    return json.loads(store.get(place))


_decided: dict[str, Evidence] = {}  # by folder and key; a process decides once per key


def collect_evidence(
    key: Key,
    order: Sequence[str],
    benchmark: Callable[[Evidence], dict[str, str]],
    cautious: Collection[str] = (),
    again: bool = False,
) -> tuple[Evidence, dict[str, str] | None]:
    """Collect the evidence about candidates; benchmark if it makes no sure choice.

    A process keeps its decision, so that a run never changes engines midway.

    Args:
        key: all facts that the choice depends on.
        order: candidates, best forecast first.
        benchmark: adds samples; returns why some candidates could not be compiled.
        cautious: see :meth:`Evidence.best`.
        again: discard known samples and benchmark again.

    Returns:
        The evidence, and the result of ``benchmark``; None if it was not called.
    """
    key_text = json.dumps([_folder(), key], sort_keys=True)
    earlier = None if again else _decided.get(key_text)

    def gather() -> dict[str, Any]:
        if earlier is not None:
            return {"evidence": earlier.to_json(), "failed": None}
        evidence = Evidence.from_json(None if again else recall(key), order)
        failed = None if evidence.is_sure(order, cautious) else benchmark(evidence)
        if failed is not None and not failed:  # a failed build may succeed next time: keep nothing
            remember(key, evidence.to_json())
        return {"evidence": evidence.to_json(), "failed": failed}

    stored = gather() if again else once_for_all(key, gather)
    evidence, failed = Evidence.from_json(stored["evidence"], order), stored["failed"]
    if not failed:
        _decided[key_text] = evidence
    return evidence, failed


def _folder() -> str:
    try:
        return str(cache_folder())
    except RuntimeError:  # no home
        return ""
