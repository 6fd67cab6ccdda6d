"""A Spec from fields of it and of its options alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from elman.plan.spec import PlanOptions, Spec

_OPTIONS = {f.name for f in fields(PlanOptions)} - {f.name for f in fields(Spec)}


def spec_of(dims: Iterable[tuple[str, int]], **given: Any) -> Spec:
    """A Spec: dims in any order, ``tape`` and its like beside ``dtype``."""
    options = {name: value for name, value in given.items() if name in _OPTIONS}
    rest = {name: value for name, value in given.items() if name not in _OPTIONS}
    return Spec(tuple(sorted(dims)), **rest, options=PlanOptions(**options))
