"""Suites by name: one file each."""

from __future__ import annotations

from benchmarks.cases import Suite
from benchmarks.suites.cells import CELLS
from benchmarks.suites.cmu import CMU
from benchmarks.suites.cpu import CPU
from benchmarks.suites.decoder import DECODER
from benchmarks.suites.deer import DEER
from benchmarks.suites.depth import DEPTH
from benchmarks.suites.ecornn import ECORNN
from benchmarks.suites.foundation import FOUNDATION
from benchmarks.suites.layers import LAYERS, STREAMS
from benchmarks.suites.long import LONG
from benchmarks.suites.matrices import MATRICES
from benchmarks.suites.memory import MEMORY
from benchmarks.suites.minibatch import MINIBATCH
from benchmarks.suites.persistent import PERSISTENT
from benchmarks.suites.scan import SCAN
from benchmarks.suites.svail import SVAIL
from benchmarks.suites.users import USERS
from elman.errors import InputError, diagnostic

_ALL = (
    FOUNDATION,
    CPU,
    LAYERS,
    STREAMS,
    DEER,
    SCAN,
    MEMORY,
    CMU,
    SVAIL,
    LONG,
    DECODER,
    ECORNN,
    MINIBATCH,
    DEPTH,
    PERSISTENT,
    USERS,
    CELLS,
    MATRICES,
)
SUITES = {suite.name: suite for suite in _ALL}


def find_suite(name: str) -> Suite:
    """The suite of a name. Raises InputError for an unknown one, listing those that exist."""
    if name not in SUITES:
        raise InputError(diagnostic(f"no suite {name!r}", [("known", ", ".join(SUITES))]))
    return SUITES[name]
