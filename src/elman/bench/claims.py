"""What a paper or report says, beside what was measured here: one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elman.bench.results import Row
from elman.errors import ElmanError


class UnmeasuredError(ElmanError):
    """A claim needs a row that there is not, or that failed."""


class Rows:
    """The rows of a suite, for statements about several of them.

    Args:
        rows: as measured.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row["case"]: row for row in rows}

    def __contains__(self, case: str) -> bool:
        return case in self._rows and "failed" not in self._rows[case]

    def __getitem__(self, case: str) -> Row:
        """The row of a case.

        Raises:
            UnmeasuredError: there is none.
        """
        if case not in self:
            raise UnmeasuredError(f"{case} was not measured")
        return self._rows[case]

    def seconds(self, case: str, contestant: str) -> float:
        """The median time of a call (s).

        Raises:
            UnmeasuredError: it was not timed.
        """
        found = self[case].get("seconds", {})
        if contestant not in found:
            why = self[case].get("absent", {}).get(contestant)
            because = "" if why is None else f": {why}"
            raise UnmeasuredError(f"{contestant} was not measured in {case}{because}")
        return found[contestant]["median"]

    def faster(self, case: str, contestant: str, other: str) -> float:
        """How many times as fast one contestant is as another in the same case."""
        return self.seconds(case, other) / self.seconds(case, contestant)


@dataclass(frozen=True)
class Verdict:
    """How a claim stands here.

    Attributes:
        holds: whether what was measured agrees.
        figure: ours, with its unit.
        why: in one sentence, what makes the difference or the agreement.
    """

    holds: bool
    figure: str
    why: str


@dataclass(frozen=True)
class Claim:
    """A statement that rows can be held against.

    Attributes:
        where: section or figure of the source.
        says: the statement.
        figure: its number there, with its unit and machine; "" if it has none.
        judge: looks at the rows of the suite.
    """

    where: str
    says: str
    figure: str
    judge: Callable[[Rows], Verdict]


HEADERS = ("where", "what it says", "there", "here", "", "why")


def judged(claims: Sequence[Claim], rows: Rows) -> list[tuple[str, ...]]:
    """Each claim under :data:`HEADERS`: holds, does not hold, or why that was not measured."""
    return [_line(claim, rows) for claim in claims]


def _line(claim: Claim, rows: Rows) -> tuple[str, ...]:
    said = (claim.where, claim.says, claim.figure)
    try:
        found = claim.judge(rows)
    except UnmeasuredError as error:
        return (*said, "", "not measured", str(error))
    return (*said, found.figure, "holds" if found.holds else "does not hold", found.why)


def curve(title: str, x: str, y: str, log: str, lines: Mapping[str, Any]) -> dict[str, Any]:
    """A plot over several rows, as rows of studies bring theirs (``report.benchmark.Plot``).

    Args:
        title, x, y: of the plot, of its axes.
        log: the names of the axes that are logarithmic, as "xy".
        lines: by name, pairs of place and value.
    """
    return {
        "title": title,
        "x": x,
        "y": y,
        "log": log,
        "lines": {name: [*map(list, zip(*pairs))] for name, pairs in lines.items() if pairs},
    }
