"""What is measured: a case is data, so that it can be handed to a process of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from benchmarks.claims import Claim, Rows
from elman.errors import InputError, diagnostic


class NoDataError(InputError):
    """A case wants data that nobody has named: it is left out, and has not failed."""


OURS = "elman"  # the contestant that a suite judges: engine auto


@dataclass(frozen=True)
class Case:
    """One row of a suite.

    Attributes:
        name: unique in its suite.
        measure: a name of ``worker.MEASURES``: what is measured, and how.
        cell: a name of ``elman.cells``.
        T, B, H, I: steps, batch, units, input size (0: as many as units). Of a scan: I > 0 is the
            size of the matrices, of which each sample has H; of a decoder, the vocabulary.
        contestants: names of ``contestants.CONTESTANTS``, timed interleaved.
        baseline: the contestant that ratios refer to, and whose float64 run judges all others.
        ratio: what elman has to reach at least against the baseline; None if nothing is asked.
        seconds: what elman may take at most (s); None if nothing is asked.
        threads: of the process.
        kind: of a study: which weights (``convergence.WEIGHTS``), or what is learned
            (``trainer_models.STUDIES``); of layers: what they do (``workloads.layer_features``).
        quick: whether ``--quick`` measures it too.
        layers: of the module.
        checkpoint: steps between two kept states of ``elman-checkpoint``.
        heads: groups of units of a layer that do not see each other's past.
        steps: of training, where a model is trained.
        most: seconds that a call of a contestant may take by forecast, and whether it has to fit
            into the memory that there is (``measures.limits``); 0: nothing is forecast.
        judged: steps over which contestants are compared; 0: all.
    """

    name: str
    measure: str
    cell: str = "gru"
    T: int = 1
    B: int = 1
    H: int = 1
    I: int = 0
    contestants: tuple[str, ...] = ()
    baseline: str = ""
    ratio: float | None = None
    seconds: float | None = None
    dtype: str = "float32"
    threads: int = 2
    kind: str = ""
    quick: bool = False
    layers: int = 1
    checkpoint: int = 0
    heads: int = 1
    steps: int = 0
    most: float = 0.0
    judged: int = 0

    @property
    def input_size(self) -> int:
        """Size of x."""
        return self.I or self.H

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-able."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Case:
        """The case that :meth:`to_json` wrote."""
        return cls(**{**fields, "contestants": tuple(fields["contestants"])})


@dataclass(frozen=True)
class Effort:
    """How long a case is measured.

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
        plots: what is drawn of several rows: ``claims.curve`` each.
        rounds: of timing, at least.
    """

    name: str
    question: str
    cases: tuple[Case, ...]
    seconds: float = 6.0
    source: str = ""
    claims: tuple[Claim, ...] = ()
    plots: Callable[[Rows], list[dict[str, Any]]] = lambda rows: []
    rounds: int = 5

    def select(self, patterns: tuple[str, ...] = (), quick: bool = False) -> tuple[Case, ...]:
        """The cases whose names fit a pattern (``gru*``; all without patterns), in order.

        Raises:
            InputError: a pattern fits no case.
        """
        for pattern in patterns:
            if not any(fnmatchcase(case.name, pattern) for case in self.cases):
                names = ", ".join(case.name for case in self.cases)
                raise InputError(
                    diagnostic(f"suite {self.name} has no case {pattern!r}", [("cases", names)])
                )
        if patterns:
            return tuple(c for c in self.cases if any(fnmatchcase(c.name, p) for p in patterns))
        return tuple(case for case in self.cases if case.quick or not quick)
