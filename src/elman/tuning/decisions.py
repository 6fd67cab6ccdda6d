"""What is known about a choice: from this process, else from disk, else benchmarked now; in a
distributed run once for all processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from elman.folders import cache_folder
from elman.tuning import cache
from elman.tuning.evidence import Evidence
from elman.tuning.ranks import once_for_all

_decided: dict[str, Evidence] = {}  # by folder and key: one process decides once


def decided(
    key: cache.Key,
    order: Sequence[str],
    benchmark: Callable[[Evidence], dict[str, str]],
    cautious: Collection[str] = (),
    again: bool = False,
) -> tuple[Evidence, dict[str, str] | None]:
    """Find what is known about candidates; benchmark on if that makes no sure choice.

    A process that has decided does not ask again, so that a run does not change engines on its way.

    Args:
        key: what the choice depends on.
        order: candidates, best forecast first.
        benchmark: adds samples; returns why some candidates could not be made.
        cautious: as of :meth:`Evidence.best`.
        again: benchmark anew, whatever is known.

    Returns:
        the evidence; what ``benchmark`` returned, None if it was not called.
    """
    place = json.dumps([_folder(), key], sort_keys=True)
    known = None if again else _decided.get(place)

    def look() -> dict[str, Any]:
        if known is not None:
            return {"evidence": known.to_json(), "failed": None}
        evidence = Evidence.of_json(None if again else cache.recall(key), order)
        failed = None if evidence.settled(order, cautious) else benchmark(evidence)
        if failed is not None and not failed:  # what failed to build may succeed the next time
            cache.remember(key, evidence.to_json())
        return {"evidence": evidence.to_json(), "failed": failed}

    found = look() if again else once_for_all(key, look)
    evidence, failed = Evidence.of_json(found["evidence"], order), found["failed"]
    if not failed:
        _decided[place] = evidence
    return evidence, failed


def _folder() -> str:
    try:
        return str(cache_folder())
    except RuntimeError:  # no home
        return ""
