"""What the abstract of suite ``ecornn`` says, and how rows are held against each statement."""

from __future__ import annotations

from benchmarks.cases import OURS
from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict
from benchmarks.measures.operators import LAYER, PRODUCTS
from benchmarks.workloads.products import COLUMNS, PANELS
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
LAUNCHES = f"launches {T},1,1"
OPERATORS = f"operators {T},64,512"
PHASES = f"phases {T},64,512"
LAYOUTS = ((64, 512, 2048), *((B, 512, 2048) for B in (20, 128, 700)), (20, 200, 800))
FIRST, AGAIN = f"first step, cold cache {T},20,200", f"first step, warm cache {T},20,200"
CHOOSING = f"choosing, kernels compiled {T},20,200"
CURVES = f"perplexities {T},20,200"
DEFAULT = "loop"
_OF_PRODUCTS = ("products", "weight gradients")  # how engine c's phases of them end
_MOST = 0.85  # of the time
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


def measured(rows: Rows) -> list[Point]:
    """The points of the grid that were measured.

    Raises:
        UnmeasuredError: none was.
    """
    found = [point for point in GRID if grid_name(point) in rows]
    if not found:
        raise UnmeasuredError("no point of the grid was measured")
    return found


def share_of_best(rows: Rows, point: Point) -> tuple[float, str]:
    """The speed of elman's choice as a share of the fastest contestant's, and who that is."""
    speeds = speeds_of(rows, grid_name(point))
    best = max(speeds, key=speeds.__getitem__)
    return speeds[OURS] / speeds[best], best


def speeds_of(rows: Rows, case: str) -> dict[str, float]:
    """How many times as fast as the baseline each contestant is, round by round."""
    row = rows[case]
    found = {name: ratio["median"] for name, ratio in row["ratio"].items()}
    return {row["asked"]["baseline"]: 1.0, **found}


def chosen(rows: Rows, point: Point) -> str:
    """The engine that elman's choice was."""
    return ", ".join(engines(rows[grid_name(point)]["facts"].get(OURS, {})))


def at(point: Point) -> str:
    """A point in a few words."""
    layers, B, H = point
    return f"({layers} x {H}, {B})"


def _over(rows: Rows, other: str) -> dict[Point, float]:
    return {point: rows.faster(grid_name(point), OURS, other) for point in measured(rows)}


def _extremes(found: dict[Point, float]) -> str:
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return f"{found[low]:.2f} {at(low)} to {found[high]:.2f} {at(high)}"


def _default_most(rows: Rows) -> Verdict:
    found = _over(rows, DEFAULT)
    return Verdict(
        max(found.values()) >= 3,
        _extremes(found),
        facts="beside a Python loop over torch's operators",
        reasons=Reasons(
            "a loop pays for each operator, most where products are small",
            "products are so large that what operators cost besides hardly counts",
        ),
    )


def _default_always(rows: Rows) -> Verdict:
    found = _over(rows, DEFAULT)
    return Verdict(
        min(found.values()) >= 1.2,
        _extremes(found),
        facts="significant: 1.2 times or more at every point of the grid",
    )


def _vendor_most(rows: Rows) -> Verdict:
    found = _over(rows, "torch")
    return Verdict(
        max(found.values()) >= 1.5,
        _extremes(found),
        facts="torch.nn.LSTM runs the vendor's closed kernels (oneDNN) on a CPU",
    )


def _worst(rows: Rows) -> Verdict:
    found = {point: share_of_best(rows, point) for point in measured(rows)}
    low = min(found, key=lambda point: found[point][0])
    picks = [chosen(rows, point) for point in found]
    counts = ", ".join(f"{name} {picks.count(name)}" for name in dict.fromkeys(picks))
    share, best = found[low]
    return Verdict(
        share >= _WORST,
        f"{share - 1:+.0%} {at(low)}" if share < 1 else "0 %",
        facts=f"beside the fastest of all at each of {len(found)} points, there {best}; "
        f"chosen: {counts}",
    )


def _first(rows: Rows) -> Verdict:
    choosing = rows.seconds(CHOOSING, OURS)
    facts = f"fewer than {_MILLISECONDS * 1e3:.0f} ms, with all candidates' kernels compiled"
    if FIRST in rows and AGAIN in rows:
        cold, warm = rows.seconds(FIRST, OURS), rows.seconds(AGAIN, OURS)
        facts += (
            f"; the first step of a formula nobody has seen, compiling included: {cold:.2f} s, in "
            f"every later process {warm * 1e3:.0f} ms"
        )
    return Verdict(
        choosing < _MILLISECONDS,
        f"{choosing * 1e3:.0f} ms",
        facts=facts,
        reasons=Reasons(
            "a few calls of each candidate tell the fastest",
            "candidates are called interleaved, for 0.2 s unless one is clearly the fastest "
            "before, so that noise does not choose",
        ),
    )


def _products(rows: Rows) -> Verdict:
    phases = rows[PHASES]["phases"]
    ours = sum(share for phase, share in phases.items() if phase.endswith(_OF_PRODUCTS))
    operators = rows[OPERATORS]["operators"]
    share = {name: _share(operators[name]["seconds"], PRODUCTS) for name in (DEFAULT, "torch")}
    layer = _share(operators["torch"]["seconds"], LAYER)
    return Verdict(
        ours > _MOST,
        f"{ours:.0%} of engine c's time",
        facts=f"of the default's time {share[DEFAULT]:.0%}; torch's own layer is one operator, "
        f"which has {layer:.0%} and does not tell",
    )


def _share(seconds: dict[str, float], kind: str) -> float:
    return seconds[kind] / sum(seconds.values())


def _launches(rows: Rows) -> Verdict:
    ratio = rows.faster(LAUNCHES, "torch", DEFAULT)
    ours = rows.faster(LAUNCHES, OURS, DEFAULT)
    default = rows.seconds(LAUNCHES, DEFAULT)
    counts = rows[OPERATORS]["operators"] if OPERATORS in rows else {}
    operators = "".join(
        f"; {name}: {one['operators']} operators a step" for name, one in counts.items()
    )
    return Verdict(
        ratio >= 5,
        f"{ratio:.0f}x torch.nn's, {ours:.0f}x elman's",
        facts=f"the time of a step of one unit and one sample, where nothing is computed: "
        f"{default * 1e3:.1f} ms by the default{operators}",
    )


def _layout(rows: Rows) -> Verdict:
    found = {
        sizes: speeds_of(rows, layout_name(sizes))
        for sizes in LAYOUTS
        if layout_name(sizes) in rows
    }
    if LAYOUTS[0] not in found:
        raise UnmeasuredError(f"{layout_name(LAYOUTS[0])} was not measured")
    gain = found[LAYOUTS[0]][COLUMNS]

    def list_of(who: str) -> str:
        return ", ".join(f"{speeds[who]:.2f} {sizes}" for sizes, speeds in found.items())

    return Verdict(
        gain >= _TWICE,
        f"{gain:.2f}x",
        facts=f"beside rows, columns {list_of(COLUMNS)}; engine c's panels {list_of(PANELS)}",
        reasons=Reasons(
            "a product reads one layout in a row, and the other one in strides",
            "a CPU's product packs operands into panels, whatever their layout",
        ),
    )


def _alike(rows: Rows) -> Verdict:
    found = rows[CURVES]["perplexities"]
    ours, theirs = found[OURS], found["torch"]
    off = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    last = abs(ours[-1] / theirs[-1] - 1)
    return Verdict(
        last <= _ALIKE,
        f"{last:.2%} apart at the end",
        facts=f"perplexity in validation {ours[-1]:.1f} beside torch.nn's {theirs[-1]:.1f}, same "
        f"seed "
        f"and steps; {off:.2%} at most on the way",
    )


CLAIMS = (
    Claim("1, 3", "up to 3x over the default", "3.0, Titan Xp", _default_most),
    Claim("3", "always significantly better than the default", "> 1, Titan Xp", _default_always),
    Claim("1, 3", "up to 1.5x over the vendor's layer", "1.5, Titan Xp", _vendor_most),
    Claim("3", "where it is slower, by less than 20 %", "-20 %, Titan Xp", _worst),
    Claim("4", "the fastest way is found in milliseconds", "ms, Titan Xp", _first),
    Claim("2, obs. 1", "products take over 85 % of the time", "85 %, cuDNN 6, Titan Xp", _products),
    Claim("2, fig. 2a", "the default launches 5x as much", "5x cuDNN 6, Titan Xp", _launches),
    Claim("2, obs. 2", "Yᵀ = W Xᵀ is twice as fast", "2x, Titan Xp", _layout),
    Claim("4", "any way may be chosen: all train alike", "", _alike),
)
