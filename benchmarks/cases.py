"""Cases, the way in which each is measured, and suites of them."""

from __future__ import annotations

import base64
import dataclasses
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from benchmarks.claims import Claim
from benchmarks.sweeps import Sweep
from elman.errors import InputError, diagnostic

if TYPE_CHECKING:
    from benchmarks.problem import Contestant, Problem

OURS = "elman"  # the contestant that a suite judges: engine auto


class NoDataError(InputError):
    """A case wants data that nobody has named: it is left out, and has not failed."""


@dataclass(frozen=True)
class Way:
    """A kind of measurement and its workload: a constant of the module that implements it.

    Attributes:
        name: in rows.
        run: measures a case: what its row has.
        draw: the random numbers of a case, from a seed; None where none are shared.
        enter: a contestant of a problem by its name, or why it is absent.
        backward: whether contestants differentiate.
        dense: whether they are given a cotangent of every output.
        apart: contestants that run in a process of their own.
    """

    name: str
    run: Callable[[Any, Effort], dict[str, Any]]
    draw: Callable[[Any], Problem] | None = None
    enter: Callable[[str, Problem], Contestant | str] | None = None
    _: KW_ONLY
    backward: bool = True
    dense: bool = False
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One row of a suite. Suites whose cases have more to say have a class of their own.

    Attributes:
        name: unique in its suite.
        measure: what is measured, and of what.
        cell: a name of ``elman.cells``.
        T, B, H, I: steps, batch, units, input size (0: as many as units). Of a scan: I > 0 is the
            size of the matrices, of which each sample has H; of a decoder, the vocabulary.
        contestants: names of those who are timed interleaved.
        baseline: the contestant that ratios refer to, and whose float64 run judges all others.
        ratio: what elman has to reach at least against the baseline; None if nothing is asked.
        seconds: what elman may take at most (s); None if nothing is asked.
        threads: of the process.
        quick: whether ``--quick`` measures it too.
        layers: of the module.
        judged: steps over which contestants are compared; 0: all.
    """

    name: str
    measure: Way
    cell: str = "gru"
    T: int = 1
    B: int = 1
    H: int = 1
    I: int = 0
    contestants: tuple[str, ...] = ()
    baseline: str = ""
    _: KW_ONLY
    ratio: float | None = None
    seconds: float | None = None
    dtype: str = "float32"
    threads: int = 2
    quick: bool = False
    layers: int = 1
    judged: int = 0

    @property
    def input_size(self) -> int:
        """Size of x."""
        return self.I or self.H

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON, as rows have them; the way by its name."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names} | {"measure": self.measure.name}


@dataclass(frozen=True)
class KindCase(Case):
    """A case of which there are several kinds: ``kind`` is what its module calls it."""

    _: KW_ONLY
    kind: str = ""


@dataclass(frozen=True)
class TrainedCase(KindCase):
    """A model that learns: so many steps, its units in heads that do not see each other's past."""

    _: KW_ONLY
    heads: int = 1
    steps: int = 0


def sized(
    name: str,
    measure: Way,
    *contestants: str,
    cell: str = "",
    of: type[Case] = Case,
    **options: Any,
) -> Any:
    """A case whose name has its T,B,H, and begins with its cell unless that is said; the first
    contestant is the baseline unless that is said."""
    sizes = re.findall(r"(\d+),(\d+),(\d+)", name)[-1]
    fields = {"baseline": contestants[0] if contestants else "", **options}
    cell = cell or name.split()[0]
    return of(name, measure, cell, *map(int, sizes), contestants=contestants, **fields)


def packed(*values: Any) -> str:
    """Cases and what belongs to them as ASCII text, for a process of this package."""
    return base64.b64encode(pickle.dumps(values)).decode()


def unpacked(text: str) -> Any:
    """The values that :func:`packed` encoded."""
    return pickle.loads(base64.b64decode(text))


@dataclass(frozen=True)
class Effort:
    """Duration of a measurement.

    Attributes:
        seconds: of interleaved timing (s), warming up and agreement apart.
        rounds: at least so many, however long one takes.
        starts: fresh processes, where a start is what is measured; seeds, where learning is.
    """

    seconds: float = 6.0
    rounds: int = 5
    starts: int = 5

    @classmethod
    def of(cls, quick: bool, seconds: float | None, usual: float = 6.0, rounds: int = 5) -> Effort:
        """The usual effort, or that of ``--quick``; with another time if one is given.

        Raises:
            InputError: a time that is none.
        """
        if seconds is not None and not seconds > 0:
            raise InputError(f"seconds of timing per case must be positive, got {seconds}")
        effort = cls(1.0, 3, 1) if quick else cls(usual, rounds)
        return effort if seconds is None else dataclasses.replace(effort, seconds=seconds)


@dataclass(frozen=True)
class Suite:
    """Cases that answer one question together.

    Attributes:
        seconds: of timing each (s).
        source: the paper or report whose claims are judged.
        claims: what it says.
        rounds: of timing, at least.
        sweep: what is drawn over several rows.
    """

    name: str
    question: str
    cases: tuple[Case, ...]
    seconds: float = 6.0
    source: str = ""
    claims: Sequence[Claim] = ()
    rounds: int = 5
    sweep: Sweep | None = None

    def select(self, patterns: tuple[str, ...] = (), quick: bool = False) -> tuple[Case, ...]:
        """The cases whose names fit a pattern (``gru*``; all without patterns), in order.

        Raises:
            InputError: a pattern fits no case.
        """
        for pattern in patterns:
            if not any(fnmatchcase(case.name, pattern) for case in self.cases):
                names = ", ".join(case.name for case in self.cases)
                text = f"suite {self.name} has no case {pattern!r}"
                raise InputError(diagnostic(text, [("cases", names)]))
        if patterns:
            return tuple(c for c in self.cases if any(fnmatchcase(c.name, p) for p in patterns))
        return tuple(case for case in self.cases if case.quick or not quick)
