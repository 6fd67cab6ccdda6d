"""Claims of papers, each judged by what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import linear_regression, mean, stdev

from benchmarks.rows import Row, busy_in_words
from elman.errors import ElmanError

HOLDS, FAILS = "holds", "does not hold"
UNDECIDED, UNTRIED = "not decided", "not tried"
SAME = 0.02  # share by which the median has to differ from 1, or there is no difference
_CLEAR = 2.0  # standard errors that a value has to be off a limit
_FLAT = 0.05  # exponent of a power law that grows by an eighth in a decade
_SHARES = {"phases", "operators"}  # fields of a row that are times
Answer = bool | None  # None: the rows cannot tell


class UnmeasuredError(ElmanError):
    """A claim needs a row that there is not, or that failed."""


def opposite(answer: Answer) -> Answer:
    """The answer to the opposite question."""
    return None if answer is None else not answer


def every(answers: Iterable[Answer]) -> Answer:
    """True if all are, False if one is: what cannot be told leaves open what no other decides."""
    given = set(answers)
    return False if False in given else None if None in given else True


def some(answers: Iterable[Answer]) -> Answer:
    """True if one is, False if none is, by the same rule."""
    return opposite(every(map(opposite, answers)))


def at_least(value: float, limit: float, margin: float) -> Answer:
    """Whether a value reaches a limit: within the margin around it nothing can be told."""
    return None if abs(value - limit) < margin else value > limit


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a time, or of how many times as fast one contestant is as another.

    Between the quartiles a limit is neither reached nor missed.
    """

    median: float
    q1: float
    q3: float

    @property
    def gains(self) -> Answer:
        """Of a ratio: whether the one is faster, in three rounds of four and by more than
        :data:`SAME`; False if it is not so in three rounds of four."""
        if self.q1 > 1 and self.median > 1 + SAME:
            return True
        return False if self.q3 <= 1 + SAME else None

    @property
    def loses(self) -> Answer:
        """Whether the contestant is slower, by the same rule."""
        return self.inverse.gains

    def reaches(self, least: float) -> Answer:
        """Whether a ratio is at least so large in three rounds of four, or less in as many."""
        return True if self.q1 >= least else False if self.q3 < least else None

    def within(self, most: float) -> Answer:
        """Whether it is at most so large in three rounds of four, or larger in as many."""
        return True if self.q3 <= most else False if self.q1 > most else None

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
    def rises(self) -> Answer:
        """Whether y grows with x, by two standard errors; False if by less than :data:`_FLAT`."""
        if self.power > _CLEAR * self.error:
            return True
        return False if self.power + _CLEAR * self.error < _FLAT else None

    @property
    def falls(self) -> Answer:
        """Whether y falls with x, by the same rule."""
        return Trend(-self.power, self.error).rises

    def exceeds(self, limit: float) -> Answer:
        """Whether the exponent is greater than a limit, by two standard errors."""
        return at_least(self.power, limit, _CLEAR * self.error)

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
    return Trend(power, math.sqrt(residual / sum((x - mean(xs)) ** 2 for x in xs)))


@dataclass(frozen=True)
class Difference:
    """By how much the mean of some runs is greater than that of others, which differ by their
    random seeds.

    Attributes:
        mean: the difference.
        error: its standard error; that of two means is the root of the sum of their squares.
    """

    mean: float
    error: float

    def exceeds(self, limit: float) -> Answer:
        """Whether it is greater than a limit, by two standard errors."""
        return at_least(self.mean, limit, _CLEAR * self.error)

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.error:.3f}"


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """The difference of two means over seeds.

    Raises:
        UnmeasuredError: fewer than two seeds of either.
    """
    if min(len(values), len(others)) < 2:
        raise UnmeasuredError("a difference needs two seeds of either, of which there is one")
    error = math.hypot(*(stdev(seeds) / math.sqrt(len(seeds)) for seeds in (values, others)))
    return Difference(mean(values) - mean(others), error)


class Rows:
    """The rows of a suite, for statements about several of them.

    Args:
        rows: as measured.

    Attributes:
        read: the cases whose rows were asked for.
        timed: those of them of which a time was asked for. Counts, bytes and losses are the same
            on a busy machine.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {row["case"]: row for row in rows}
        self.read: set[str] = set()
        self.timed: set[str] = set()

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
        """Rows whose times were read, and measured while other programs took the cores."""
        timed = self.timed | {case for case in self.read if _SHARES & self._rows[case].keys()}
        return [row for case, row in self._rows.items() if case in timed and busy_in_words(row)]

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
        self.timed.add(case)
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
    """Explanations of both verdicts of a claim that is decided, one sentence each."""

    holds: str
    fails: str

    def __post_init__(self) -> None:
        assert self.holds, "a verdict of either kind has its reason"
        assert self.fails, "a verdict of either kind has its reason"
        assert self.holds != self.fails, "what makes a claim hold does not make it fail"


_CANNOT_TELL = "it varies by more than it is off the limit"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim.

    Attributes:
        holds: whether what was measured agrees; None if the rows cannot tell.
        figure: ours, with its unit.
        facts: what else was measured, and how it was judged: nothing that speaks for either side.
        reasons: what makes the agreement or the difference, where that is known.
    """

    holds: Answer
    figure: str
    _: KW_ONLY
    facts: str = ""
    reasons: Reasons | None = None

    @property
    def explanation(self) -> str:
        """The reason of this verdict, and the facts."""
        reason = "" if self.holds is not None else _CANNOT_TELL
        if self.reasons is not None and self.holds is not None:
            reason = self.reasons.holds if self.holds else self.reasons.fails
        return "; ".join(text for text in (reason, self.facts) if text)


@dataclass(frozen=True)
class Claim:
    """A statement that rows can be held against.

    Attributes:
        section: section or figure of the source.
        says: the statement.
        figure: its number there, with its unit and machine; "" if it has none.
        judge: looks at the rows of the suite.
    """

    section: str
    says: str
    figure: str
    judge: Callable[[Rows], Verdict]


Judgement = Verdict | tuple[Answer, str] | tuple[Answer, str, str]


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
    """Each claim under :data:`HEADERS`: what was measured, and one of four verdicts.

    A claim holds, does not hold, is not decided (the rows cannot tell, or other programs took the
    cores while its times were measured), or was not tried (a row is missing).
    """
    return [_line(claim, rows.anew()) for claim in claims]


def _line(claim: Claim, rows: Rows) -> tuple[str, ...]:
    source = (claim.section, claim.says, claim.figure)
    try:
        verdict = claim.judge(rows)
    except UnmeasuredError as error:
        return (*source, "", UNTRIED, str(error))
    if busy := rows.busy():
        row = max(busy, key=lambda row: row["waited"])
        return (*source, "", UNDECIDED, f"{row['case']}: {busy_in_words(row)}")
    word = {True: HOLDS, False: FAILS, None: UNDECIDED}[verdict.holds]
    return (*source, verdict.figure, word, verdict.explanation)
