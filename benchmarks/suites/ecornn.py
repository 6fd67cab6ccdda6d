"""Suite ``ecornn``: the recurrent part of word models, each way to run it beside the others."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, KindCase, Suite, sized
from benchmarks.claims import Claims, Rows, Spread, at_least, every, some
from benchmarks.contestants import TRAIN
from benchmarks.measures.operators import LAYER, PRODUCTS
from benchmarks.measures.operators import OPERATORS as BY_KIND
from benchmarks.measures.phases import PHASES as PARTED
from benchmarks.measures.starting import CHOOSING as CHOICE
from benchmarks.measures.starting import COLD, WARM
from benchmarks.studies import PERPLEXITIES
from benchmarks.sweeps import Sweep
from benchmarks.worker import PEAK
from benchmarks.workloads.language import LANGUAGE, LANGUAGES, WORDS
from benchmarks.workloads.products import COLUMNS, PANELS, PRODUCT, ROWS
from elman.train.run.record import engines

T = 35
Point = tuple[int, int, int]  # layers, minibatch, units
PTB: Point = (2, 20, 200)
GRID: tuple[Point, ...] = (
    *((layers, B, 200) for layers in (1, 2) for B in (20, 64, 128)),
    *((layers, B, 512) for layers in (1, 2) for B in (20, 64)),
    (1, 128, 512),
    (2, 20, 650),
    (1, 32, 1024),
)
MODELS: tuple[Point, ...] = tuple((2, B, H) for H in (200, 650) for B in (20, 64, 128))
LAUNCHES = f"launches {T},1,1"
OPERATORS, PHASES = f"operators {T},64,512", f"phases {T},64,512"
LAYOUTS = ((64, 512, 2048), *((B, 512, 2048) for B in (20, 128, 700)), (20, 200, 800))
FIRST, AGAIN = f"first step, cold cache {T},20,200", f"first step, warm cache {T},20,200"
CHOOSING = f"choosing, kernels compiled {T},20,200"
CURVES = f"perplexities {T},20,200"
DEFAULT = "loop"
CLAIMS = Claims()
_OF_PRODUCTS = ("products", "weight gradients")  # how engine c's phases of them end
_MOST, _MARGIN = 0.85, 0.02  # of the time; by which shares of it differ from run to run
_WORST = 0.8  # of the best one's speed
_MILLISECONDS = 0.1  # s: two digits of them
_ALIKE = 0.01  # of a perplexity
_TWICE = 1.8


def grid_name(point: Point) -> str:
    """The case of a point of the grid."""
    layers, B, H = point
    return f"{layers} lstm {T},{B},{H}"


def layout_name(sizes: tuple[int, int, int]) -> str:
    """The case of a product X Wᵀ, of X [B, I] and W [H, I]."""
    return f"product {','.join(map(str, sizes))}"


def measured(rows: Rows, whole: bool = False) -> dict[str, str]:
    """The cases of the grid that were measured, and each in a few words.

    Args:
        whole: whether those of whole models are among them.

    Raises:
        UnmeasuredError: none was.
    """
    cases = {grid_name(point): at(point) for point in GRID}
    if whole:
        names = {(text, point): model_name(point, text) for text in WORDS for point in MODELS}
        cases |= {name: f"model {text or 'ptb'} {at(p)}" for (text, p), name in names.items()}
    rows.among(cases, "no point of the grid was measured")
    return {case: words for case, words in cases.items() if case in rows}


def share_of_best(rows: Rows, case: str) -> tuple[Spread, str]:
    """The speed of elman's choice as a share of the fastest contestant's, and who that is."""
    speeds = speeds_of(rows, case)
    best = max(speeds, key=speeds.__getitem__)
    return Spread(1, 1, 1) if best == OURS else rows.ratio(case, OURS, best), best


def speeds_of(rows: Rows, case: str) -> dict[str, float]:
    """Median speed-up of each contestant over the baseline."""
    row = rows[case]
    speeds = {name: ratio["median"] for name, ratio in row["ratio"].items()}
    return {row["asked"]["baseline"]: 1.0, **speeds}


def chosen_engine(rows: Rows, case: str) -> str:
    """The engine that elman's choice was."""
    return ", ".join(engines(rows[case]["facts"].get(OURS, {})))


def at(point: Point) -> str:
    """A point in a few words."""
    layers, B, H = point
    return f"({layers} x {H}, {B})"


def _over(rows: Rows, reference: str, whole: bool = False) -> tuple[list[Spread], str]:
    """Speed-ups of elman over a contestant at each point of the grid, and the extremes in words."""
    cases = measured(rows, whole)
    ratios = {case: rows.ratio(case, OURS, reference) for case in cases}
    low, *_, high = sorted(ratios, key=lambda case: ratios[case].median)
    extremes = (f"{ratios[case].median:.2f} {cases[case]}" for case in (low, high))
    return [*ratios.values()], " to ".join(extremes)


@CLAIMS(
    *("1, 3", "up to 3x over the default", "3.0, Titan Xp"),
    holds="a loop pays for each operator, most where products are small",
    fails="products are so large that what operators cost besides hardly counts",
)
def default_most(rows: Rows):
    ratios, extremes = _over(rows, DEFAULT)
    return (
        some(ratio.reaches(3) for ratio in ratios),
        extremes,
        "beside a Python loop over torch's operators",
    )


@CLAIMS(
    *("3", "always significantly better than the default", "> 1, Titan Xp"),
    holds="each operator of the loop passes its results through memory, at every size",
    fails="at the largest sizes products are nearly all of the time, and as fast in a loop",
)
def default_always(rows: Rows):
    ratios, extremes = _over(rows, DEFAULT, whole=True)
    facts = "significant: 1.2 times or more at every point of the grid, whole models included"
    return every(ratio.reaches(1.2) for ratio in ratios), extremes, facts


@CLAIMS(
    *("1, 3", "up to 1.5x over the vendor's layer", "1.5, Titan Xp"),
    holds="in each step torch's layer gives its large blocks back to the system and takes new ones",
    fails="both call products that are as fast, and these are nearly all of the time",
)
def vendor_most(rows: Rows):
    ratios, extremes = _over(rows, "torch")
    facts = "torch.nn.LSTM runs the vendor's closed kernels (oneDNN) on a CPU"
    return some(ratio.reaches(1.5) for ratio in ratios), extremes, facts


@CLAIMS(
    *("3", "where it is slower, by less than 20 %", "-20 %, Titan Xp"),
    holds="the choice is by measurement of the same call, and is off by no more than its noise",
    fails="the choice was measured when another candidate happened to be the fastest",
)
def worst(rows: Rows):
    cases = measured(rows, whole=True)
    shares = {case: share_of_best(rows, case) for case in cases}
    low = min(shares, key=lambda case: shares[case][0].median)
    picks = [chosen_engine(rows, case) for case in shares]
    counts = ", ".join(f"{name} {picks.count(name)}" for name in dict.fromkeys(picks))
    share, best = shares[low]
    facts = f"beside the fastest of all at each of {len(shares)} points, whole models included, "
    facts += f"there {best}"
    figure = f"{share.median - 1:+.0%} {cases[low]}" if share.median < 1 else "0 %"
    return share.reaches(_WORST), figure, f"{facts}; chosen: {counts}"


@CLAIMS(
    *("4", "the fastest way is found in milliseconds", "ms, Titan Xp"),
    holds="a few calls of each candidate tell the fastest",
    fails="candidates are called interleaved, for 0.2 s unless one is clearly the fastest "
    "before, so that noise does not choose",
)
def first(rows: Rows):
    choosing = rows.time(CHOOSING, OURS)
    facts = f"fewer than {_MILLISECONDS * 1e3:.0f} ms, with all candidates' kernels compiled"
    if FIRST in rows and AGAIN in rows:
        cold, warm = rows.seconds(FIRST, OURS), rows.seconds(AGAIN, OURS)
        facts += (
            f"; the first step of a formula nobody has seen, compiling included: {cold:.2f} s, in "
            f"every later process {warm * 1e3:.0f} ms"
        )
    return choosing.within(_MILLISECONDS), f"{choosing.median * 1e3:.0f} ms", facts


@CLAIMS(
    *("2, obs. 1", "products take over 85 % of the time", "85 %, cuDNN 6, Titan Xp"),
    holds="pointwise code runs on a product's tile while that is in the first cache",
    fails="with few units a product is no more work than the pointwise code after it",
)
def products(rows: Rows):
    phases = rows[PHASES]["phases"]
    multiplied = sum(share for phase, share in phases.items() if phase.endswith(_OF_PRODUCTS))
    operators = rows[OPERATORS]["operators"]
    seconds = {name: operators[name]["seconds"] for name in (DEFAULT, "torch")}
    loop = seconds[DEFAULT][PRODUCTS] / sum(seconds[DEFAULT].values())
    layer = seconds["torch"][LAYER] / sum(seconds["torch"].values())
    facts = (
        f"of the default's time {loop:.0%}; torch's own layer is one operator, which has "
        f"{layer:.0%} and does not tell"
    )
    return at_least(multiplied, _MOST, _MARGIN), f"{multiplied:.0%} of engine c's time", facts


@CLAIMS(
    *("2, fig. 2a", "the default launches 5x as much", "5x cuDNN 6, Titan Xp"),
    holds="the loop dispatches each operator of each step, the layer one for all steps",
    fails="dispatching is cheap beside what one operator for all steps prepares",
)
def launches(rows: Rows):
    torch, elman = (rows.ratio(LAUNCHES, contestant, DEFAULT) for contestant in ("torch", OURS))
    default = rows.seconds(LAUNCHES, DEFAULT)
    counts = rows[OPERATORS]["operators"] if OPERATORS in rows else {}
    operators = "".join(
        f"; {k}: {profile['operators']} operators a step" for k, profile in counts.items()
    )
    facts = (
        "the time of a step of one unit and one sample, where nothing is computed: "
        f"{default * 1e3:.1f} ms by the default{operators}"
    )
    figure = f"{torch.median:.0f}x torch.nn's, {elman.median:.0f}x elman's"
    return torch.reaches(5), figure, facts


@CLAIMS(
    *("2, obs. 2", "Yᵀ = W Xᵀ is twice as fast", "2x, Titan Xp"),
    holds="a product reads one layout in a row, and the other one in strides",
    fails="a CPU's product packs operands into panels, whatever their layout",
)
def layout(rows: Rows):
    rows[layout_name(LAYOUTS[0])]
    names = {sizes: name for sizes in LAYOUTS if (name := layout_name(sizes)) in rows}
    speeds_by_sizes = {sizes: speeds_of(rows, name) for sizes, name in names.items()}
    columns, panels = (
        ", ".join(f"{speeds[contestant]:.2f} {sizes}" for sizes, speeds in speeds_by_sizes.items())
        for contestant in (COLUMNS, PANELS)
    )
    gain = rows.ratio(layout_name(LAYOUTS[0]), COLUMNS, ROWS)
    facts = f"beside rows, columns {columns}; engine c's panels {panels}"
    return gain.reaches(_TWICE), f"{gain.median:.2f}x", facts


@CLAIMS(
    *("4", "any way may be chosen: all train alike"),
    holds="all ways compute the same formula, and differ by rounding",
    fails="training amplifies what the order of a sum rounds otherwise",
)
def alike(rows: Rows):
    elman, torch = (rows[CURVES]["perplexities"][contestant] for contestant in (OURS, "torch"))
    off = [abs(a / b - 1) for a, b in zip(elman, torch, strict=True)]
    facts = (
        f"perplexity in validation {elman[-1]:.1f} beside torch.nn's {torch[-1]:.1f}, same seed "
        f"and steps; {max(off):.2%} at most on the way"
    )
    return off[-1] <= _ALIKE, f"{off[-1]:.2%} apart at the end", facts


_WAYS = (DEFAULT, "torch", OURS, "elman-c", "elman-aten")


def _point(point: Point, cell: str = "lstm", ratio: float | None = None) -> Case:
    """A training step of the recurrent layers, by every way."""
    quick, name = point == PTB and cell == "lstm", grid_name(point).replace("lstm", cell)
    options: dict[str, Any] = {"ratio": ratio, "layers": point[0], "quick": quick}
    return sized(name, TRAIN, *_WAYS, cell=cell, baseline="torch", **options)


def model_name(point: Point, text: str = "", cell: str = "lstm") -> str:
    """The case of a whole model of the words of a text (`workloads.language.WORDS`)."""
    layers, B, H = point
    return " ".join([f"model {layers} {cell}", *text.split(), f"{T},{B},{H}"])


def _model(point: Point, text: str = "", cell: str = "lstm") -> Case:
    """A training step of the whole model."""
    ratio, quick = (1.4, cell == "lstm") if (point, text) == (PTB, "") else (None, False)
    options: dict[str, Any] = {"ratio": ratio, "layers": point[0], "quick": quick}
    name = model_name(point, text, cell)
    return sized(name, LANGUAGE, *LANGUAGES, cell=cell, of=KindCase, kind=text, **options)


def _product(sizes: tuple[int, int, int]) -> Case:
    """Both layouts of a product; its step is one."""
    (B, I, H), quick = sizes, sizes == LAYOUTS[0]
    contestants = (ROWS, COLUMNS, PANELS)
    return Case(
        layout_name(sizes), PRODUCT, "projected", 1, B, H, I, contestants, ROWS, quick=quick
    )


_OPERATORS: dict[str, Any] = {"cell": "lstm", "baseline": ""}
ECORNN = Suite(
    "ecornn",
    "Which way to run the LSTM of a word model is the fastest, and does elman choose it?",
    (
        PEAK,
        *(_point(point, ratio=1.2 if point == PTB else None) for point in GRID),
        _point(PTB, "gru", 2.0),
        _model(PTB, cell="gru"),
        *(_model(point, text) for text in WORDS for point in MODELS),
        sized(
            *(LAUNCHES, TRAIN, DEFAULT, "torch", OURS), cell="lstm", baseline="torch", quick=True
        ),
        sized(OPERATORS, BY_KIND, DEFAULT, "torch", OURS, **_OPERATORS),
        sized(PHASES, PARTED, cell="lstm"),
        *map(_product, LAYOUTS),
        sized(FIRST, COLD, cell="gru"),
        sized(AGAIN, WARM, cell="gru"),
        sized(CHOOSING, CHOICE, cell="lstm", quick=True),
        sized(CURVES, PERPLEXITIES, cell="lstm", layers=PTB[0]),
    ),
    seconds=1.0,
    source="Zheng, EcoRNN: Efficient Computing of LSTM RNN on GPUs (extended abstract): Titan Xp",
    claims=CLAIMS,
    sweep=Sweep(
        "training of two layers of LSTM, 20 rows",
        *("units", "words/s", (200, 512, 650), _WAYS),
        lambda rows, name, H: T * 20 / rows.seconds(grid_name((2, 20, H)), name),
    ),
)
