"""Suites by name: one file each."""

from __future__ import annotations

from elman.bench.cases import Suite
from elman.bench.suites.cells import CELLS
from elman.bench.suites.cmu import CMU
from elman.bench.suites.cpu import CPU
from elman.bench.suites.decoder import DECODER
from elman.bench.suites.deer import DEER
from elman.bench.suites.depth import DEPTH
from elman.bench.suites.ecornn import ECORNN
from elman.bench.suites.foundation import FOUNDATION
from elman.bench.suites.layers import LAYERS, STREAMS
from elman.bench.suites.long import LONG
from elman.bench.suites.memory import MEMORY
from elman.bench.suites.minibatch import MINIBATCH
from elman.bench.suites.persistent import PERSISTENT
from elman.bench.suites.scan import SCAN
from elman.bench.suites.svail import SVAIL
from elman.bench.suites.users import USERS
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
)
SUITES = {suite.name: suite for suite in _ALL}


def find_suite(name: str) -> Suite:
    """The suite of a name. Raises InputError for an unknown one, listing those that exist."""
    if name not in SUITES:
        raise InputError(diagnostic(f"no suite {name!r}", [("known", ", ".join(SUITES))]))
    return SUITES[name]
