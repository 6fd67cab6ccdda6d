"""Claims of papers, each judged by what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import linear_regression

from benchmarks.rows import Row, busy_in_words
from elman.errors import ElmanError

HOLDS, FAILS = "holds", "does not hold"
UNMEASURED, BUSY = "not measured", "not measured (busy)"
SAME = 0.02  # share by which the median has to differ from 1, or there is no difference
_CLEAR = 2.0  # standard errors that a trend has to be off zero


class UnmeasuredError(ElmanError):
    """A claim needs a row that there is not, or that failed."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a time, or of how many times as fast one contestant is as another."""

    median: float
    q1: float
    q3: float

    @property
    def gains(self) -> bool:
        """Of a ratio: whether the one is faster, in three rounds of four and by more than
        :data:`SAME`."""
        return self.q1 > 1 and self.median > 1 + SAME

    @property
    def loses(self) -> bool:
        """True if the contestant is slower, by the same rule."""
        return self.inverse.gains

    def reaches(self, least: float) -> bool:
        """True if a ratio is at least so large in three rounds of four."""
        return self.q1 >= least

    def within(self, most: float) -> bool:
        """True if a time is at most so long in three rounds of four."""
        return self.q3 <= most

    @property
    def inverse(self) -> Spread:
        """The other one beside this one."""
        return Spread(1 / self.median, 1 / self.q3, 1 / self.q1)

    def over(self, reference: Spread) -> Spread:
        """This beside the other, both being beside the same third: their deviations in the
        logarithm are taken as independent."""
        down = math.hypot(
            *(math.log(ratio.median / ratio.q1) for ratio in (self, reference.inverse))
        )
        up = math.hypot(*(math.log(ratio.q3 / ratio.median) for ratio in (self, reference.inverse)))
        median = self.median / reference.median
        return Spread(median, median * math.exp(-down), median * math.exp(up))


@dataclass(frozen=True)
class Trend:
    """A power law y ~ x^power through points, by least squares in the logarithms.

    Attributes:
        power: the exponent.
        error: its standard error.
    """

    power: float
    error: float

    @property
    def rises(self) -> bool:
        """True if y grows with x, by two standard errors."""
        return self.power > _CLEAR * self.error

    @property
    def falls(self) -> bool:
        """True if y falls with x, by two standard errors."""
        return -self.power > _CLEAR * self.error

    def __str__(self) -> str:
        return f"{self.power:+.2f} ± {self.error:.2f}"


def fit_trend(points: Iterable[tuple[float, float]]) -> Trend:
    """The power law through pairs of x and y.

    Raises:
        UnmeasuredError: fewer than three of them, or one x alone.
    """
    pairs = [(math.log(x), math.log(y)) for x, y in points]
    if len(pairs) < 3 or len({x for x, _ in pairs}) < 2:
        raise UnmeasuredError("a trend needs three points, of which there are fewer")
    xs, ys = zip(*pairs, strict=True)
    power, at_zero = linear_regression(xs, ys)
    residual = sum((y - at_zero - power * x) ** 2 for x, y in pairs) / (len(pairs) - 2)
    mean = sum(xs) / len(xs)
    return Trend(power, math.sqrt(residual / sum((x - mean) ** 2 for x in xs)))


class Rows:
    """The rows of a suite, for statements about several of them.

    Args:
        rows: as measured.

    Attributes:
        read: the cases whose rows were asked for.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {row["case"]: row for row in rows}
        self.read: set[str] = set()

    def __contains__(self, case: str) -> bool:
        return case in self._rows and not {"failed", "skipped"} & self._rows[case].keys()

    def __getitem__(self, case: str) -> Row:
        """The row of a case.

        Raises:
            UnmeasuredError: there is none.
        """
        if case not in self:
            explanation = self._rows.get(case, {}).get("skipped")
            raise UnmeasuredError(f"{case} was not measured{_because(explanation)}")
        self.read.add(case)
        return self._rows[case]

    def among(self, cases: Iterable[str], explanation: str) -> list[str]:
        """Names of the cases that were measured.

        Raises:
            UnmeasuredError: none was, for the reason that is given.
        """
        if measured := [case for case in cases if case in self]:
            return measured
        raise UnmeasuredError(explanation)

    def anew(self) -> Rows:
        """A copy that has no row marked as read."""
        return Rows(self._rows.values())

    def rate(self, case: str, contestant: str) -> float:
        """GFLOP/s of the products that a contestant does."""
        return self[case]["flop"] / self.seconds(case, contestant) / 1e9

    def busy(self) -> list[Row]:
        """Rows that were read, and measured while other programs took the cores."""
        return [row for case, row in self._rows.items() if case in self.read and busy_in_words(row)]

    def seconds(self, case: str, contestant: str) -> float:
        """The median of :meth:`time`."""
        return self.time(case, contestant).median

    def faster(self, case: str, contestant: str, reference: str) -> float:
        """Median of :meth:`ratio`."""
        return self.ratio(case, contestant, reference).median

    def ratio(self, case: str, contestant: str, reference: str) -> Spread:
        """The same with its quartiles: round by round where one of both is the baseline, which all
        others of a row are beside; else by the ratios to it or by times, whichever spread less.

        Raises:
            UnmeasuredError: one of both was not timed.
        """
        numerator, denominator = self.time(case, contestant), self.time(case, reference)
        row = self[case]
        beside, baseline = row.get("ratio", {}), row.get("asked", {}).get("baseline")
        if contestant == baseline and reference in beside:
            return spread_of(beside[reference]).inverse
        if reference == baseline and contestant in beside:
            return spread_of(beside[contestant])
        ways = [denominator.over(numerator)]
        if contestant in beside and reference in beside:
            ways.append(spread_of(beside[contestant]).over(spread_of(beside[reference])))
        return min(ways, key=lambda way: way.q3 / way.q1)

    def time(self, case: str, contestant: str) -> Spread:
        """The time of a call (s).

        Raises:
            UnmeasuredError: it was not timed.
        """
        times = self[case].get("seconds", {})
        if contestant not in times:
            explanation = self[case].get("absent", {}).get(contestant)
            raise UnmeasuredError(f"{contestant} was not measured in {case}{_because(explanation)}")
        return spread_of(times[contestant])


def _because(explanation: str | None) -> str:
    return "" if explanation is None else f": {explanation}"


def spread_of(quartiles: Mapping[str, float]) -> Spread:
    """Quartiles of a row, of times or of ratios."""
    return Spread(quartiles["median"], quartiles["q1"], quartiles["q3"])


@dataclass(frozen=True)
class Reasons:
    """Explanations of both verdicts of a claim, one sentence each."""

    holds: str
    fails: str

    def __post_init__(self) -> None:
        assert self.holds, "a verdict of either kind has its reason"
        assert self.fails, "a verdict of either kind has its reason"
        assert self.holds != self.fails, "what makes a claim hold does not make it fail"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim.

    Attributes:
        holds: whether what was measured agrees.
        figure: ours, with its unit.
        facts: what else was measured, and how it was judged: nothing that speaks for either side.
        reasons: what makes the agreement or the difference, where that is known.
    """

    holds: bool
    figure: str
    _: KW_ONLY
    facts: str = ""
    reasons: Reasons | None = None

    @property
    def explanation(self) -> str:
        """The reason of this verdict, and the facts."""
        reason = ""
        if self.reasons is not None:
            reason = self.reasons.holds if self.holds else self.reasons.fails
        return "; ".join(text for text in (reason, self.facts) if text)


@dataclass(frozen=True)
class Claim:
    """A statement that rows can be held against.

    Attributes:
        where: section or figure of the source.
        says: the statement.
        figure: its number there, with its unit and machine; "" if it has none.
        judge: looks at the rows of the suite.
    """

    section: str
    says: str
    figure: str
    judge: Callable[[Rows], Verdict]


Judgement = Verdict | tuple[bool, str] | tuple[bool, str, str]


class Claims(list[Claim]):
    """What a source says, in its order; each is written above the function that judges it:

    ``@CLAIMS("4.9", "fused loops against one after another", "almost 2x")``, with the reasons of
    both verdicts if they are known. The function returns whether the claim holds, our figure, and
    facts if there are any; or a verdict, whose reasons are its own.
    """

    def __call__(
        self, section: str, says: str, figure: str = "", *, holds: str = "", fails: str = ""
    ) -> Callable[[Callable[[Rows], Judgement]], Callable[[Rows], Judgement]]:
        """Note a claim; a decorator of what judges it."""
        reasons = Reasons(holds, fails) if holds or fails else None

        def judge_by(judge: Callable[[Rows], Judgement]) -> Callable[[Rows], Judgement]:
            def judged(rows: Rows) -> Verdict:
                verdict = judge(rows)
                if isinstance(verdict, Verdict):
                    return verdict
                agrees, figure_here, *facts = verdict
                return Verdict(agrees, figure_here, facts="".join(facts), reasons=reasons)

            self.append(Claim(section, says, figure, judged))
            return judge

        return judge_by


HEADERS = ("where", "what it says", "there", "here", "", "why")
VERDICT = 4  # column that says whether a claim holds


def judged(claims: Sequence[Claim], rows: Rows) -> list[tuple[str, ...]]:
    """Each claim under :data:`HEADERS`: holds, does not hold, or why that was not measured."""
    return [_line(claim, rows.anew()) for claim in claims]


def _line(claim: Claim, rows: Rows) -> tuple[str, ...]:
    source = (claim.section, claim.says, claim.figure)
    try:
        verdict = claim.judge(rows)
    except UnmeasuredError as error:
        return (*source, "", UNMEASURED, str(error))
    if busy := rows.busy():
        row = max(busy, key=lambda row: row["waited"])
        return (*source, "", BUSY, f"{row['case']}: {busy_in_words(row)}")
    return (*source, verdict.figure, HOLDS if verdict.holds else FAILS, verdict.explanation)
