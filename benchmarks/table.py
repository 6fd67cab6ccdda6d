"""Rows of measurements as text, the same in the terminal and in the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cases import OURS
from benchmarks.claims import UNDECIDED, Answer, spread_of
from benchmarks.measures.limits import REFUSED
from benchmarks.rows import STUDY, Row, busy_in_words
from benchmarks.workloads.custom_cells import spiking

CASE = "case"
COLUMNS = {  # name -> header, and the name for a line about one row
    CASE: ("case (T,B,H)", ""),
    "baseline": ("torch, per step", "torch"),
    OURS: ("elman, per step", "elman"),
    "ratio": ("speed-up (quartiles)", "speed-up"),
    "first": ("first call after other work (speed-up)", "first call"),
    "target": ("target", "target"),
    "c": ("engine c alone", "engine c"),
    "error": ("error", "error"),
    "speed": ("GFLOP/s (of peak)", "GFLOP/s"),
    "others": ("speed-up over others", "over"),
    "study": ("study", "study"),
    "memory": ("memory of a step (forecast)", "memory"),
    "phases": ("where the time goes", "time in"),
    "refused": ("not measured", "not measured:"),
    "busy": ("machine", "machine"),
}
NOTHING = "–"
PHASES = 4  # shown, of all
LARGE = 32  # units from which on GFLOP/s say something about the arithmetic


def words(row: Row) -> dict[str, str]:
    """The texts of a row that are not empty, by name of :data:`COLUMNS`."""
    texts = {CASE: row[CASE]} | _measured(row)
    if busy_in_words(row):
        texts["busy"] = f"busy ({row['waited']:.0%})"
    return {name: text for name, text in texts.items() if text != NOTHING}


def _measured(row: Row) -> dict[str, str]:
    if "failed" in row:
        return {OURS: "failed"}
    if "skipped" in row:
        return {"refused": row["skipped"]}
    if "bandwidth_gbs" in row:
        return {"speed": f"{row['bandwidth_gbs']:.1f} GB/s"}
    if "solvers" in row or "lengths" in row:
        return {"study": _iterations(row)}
    if STUDY in row:
        return {"study": row[STUDY]}
    if "phases" in row:
        return {"phases": _phases(row["phases"])}
    if "peak_gflops" in row:
        return {"speed": "; ".join(_peaks(row["peak_gflops"]))}
    case = row["asked"]
    ratios, seconds = row.get("ratio", {}), row["seconds"]
    steps = case["T"] if ratios else None
    return {
        "baseline": _time(seconds.get(case["baseline"] or "torch"), steps) + _loop(case),
        OURS: _time(seconds.get(OURS), steps),
        "ratio": _ratio(ratios.get(OURS)),
        "first": _first(row.get("first", {}), case["baseline"], steps),
        "target": _target(row),
        "c": _ratio(ratios.get("elman-c"), spread=False),
        "error": _number(row.get("error", {}).get(OURS), ".1e"),
        "speed": _speed(row),
        "others": _peers(ratios, case["baseline"]),
        "memory": _memory(row.get("memory", {})),
        "refused": _refused(row),
    }


def _memory(memory: dict[str, Any]) -> str:
    """Peaks beside weights and arguments, and what was forecast."""
    texts = [
        f"{name.removeprefix(f'{OURS}-')} {_three(bytes_of['peak'] / (1 << 20))}"
        + ("" if bytes_of["forecast"] is None else f" ({_three(bytes_of['forecast'] / (1 << 20))})")
        for name, bytes_of in memory.items()
    ]
    return f"{', '.join(texts)} MiB" if texts else NOTHING


def _refused(row: Row) -> str:
    """Refused contestants with reasons; and how many steps were compared, if not all."""
    texts = [
        f"{name.removeprefix(f'{OURS}-')}: {reason.removeprefix(REFUSED)}"
        for name, reason in row.get("absent", {}).items()
        if reason.startswith(REFUSED)
    ]
    if "compared" in row:
        texts.append(f"errors are those of the first {row['compared']} steps")
    return "; ".join(texts) or NOTHING


def _iterations(row: Row) -> str:
    """Iterations of each solver, or why it did not end; or of Newton's method at each length."""
    if "lengths" in row:
        texts = [
            f"iterations {kind} "
            + ", ".join(f"{T}: {count}" for T, count in zip(*line, strict=True))
            for kind, line in row["lengths"].items()
        ]
        return "; ".join(texts)
    texts = [
        f"{name} {NOTHING if solver['iterations'] is None else solver['iterations']}"
        + (f" ({solver['replaced']} values replaced)" if solver["replaced"] else "")
        for name, solver in row["solvers"].items()
    ]
    return f"iterations {', '.join(texts)}; returned: {row['solved_by']}"


def _phases(shares: dict[str, float]) -> str:
    """The largest shares first."""
    largest = sorted(shares.items(), key=lambda item: -item[1])[:PHASES]
    return ", ".join(f"{name} {share:.1%}" for name, share in largest)


def filled(rows: list[Row], without: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Headers and rows as words, without the columns in which no row has anything."""
    lines = [words(row) for row in rows]
    columns = [n for n in COLUMNS if n not in without and any(n in line for line in lines)]
    headers = [COLUMNS[name][0] for name in columns]
    return headers, [[line.get(name, NOTHING) for name in columns] for line in lines]


def _peers(ratios: dict[str, Any], baseline: str) -> str:
    """Speed-up of elman over each peer, by the ratios of both to the baseline."""
    if OURS in ratios:
        elman = ratios[OURS]["median"]
    elif ratios and baseline.startswith(OURS):  # one of our engines is what all are compared with
        elman = 1.0
    elif f"{OURS}-c" in ratios:
        elman = ratios[f"{OURS}-c"]["median"]
    else:
        return NOTHING
    peers = {
        name.removeprefix(f"{OURS}-"): ratio
        for name, ratio in ratios.items()
        if name not in (OURS, f"{OURS}-c")
    }
    texts = [f"{name} {_three(elman / ratio['median'])}x" for name, ratio in peers.items()]
    return ", ".join(texts) or NOTHING


def machine_line(row: Row) -> str:
    """The machine of a row in one sentence."""
    m = row["machine"]
    peak = max(m.get("peak_gflops", {}).values(), default=None)
    peak_text = "" if peak is None else f", fp32 peak {peak:.0f} GFLOP/s"
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} threads, {m['kernel_isa']}{peak_text}; "
        f"torch {m['torch']} ({m['blas']}), {m['compiler']}; commit {row['commit']}"
    )


def warnings_of(rows: list[Row]) -> list[str]:
    """Warnings about the machine that measured rows: a line if any was busy."""
    busy = [row for row in rows if busy_in_words(row)]
    if not busy:
        return []
    worst = max(busy, key=lambda row: row["waited"])
    return [f"{busy_in_words(worst)} That is {worst[CASE]}, the worst of {len(busy)} busy rows."]


def share_of_peak(row: Row) -> tuple[float, float | None] | None:
    """GFLOP/s of elman's median (of engine c's where it alone runs) and, if the peak is known,
    their share of it; None where products are not counted, or have spikes for operands."""
    seconds = row.get("seconds", {})
    time = seconds.get(OURS) or seconds.get(f"{OURS}-c")
    if not row.get("flop") or time is None or spiking(row["asked"]["cell"]):
        return None
    gflops = row["flop"] / time["median"] / 1e9
    peaks = row["machine"].get("peak_gflops", {})
    threads = min(row["asked"]["threads"], row["machine"]["cores"])
    peak = peaks.get(str(threads))
    return gflops, gflops / peak if peak else None


def _speed(row: Row) -> str:
    if row["asked"]["measure"] == "scan" and OURS in row["seconds"]:
        return f"{row['bytes'] / row['seconds'][OURS]['median'] / 1e9:.1f} GB/s"
    reached = share_of_peak(row)
    if reached is None or row["asked"]["H"] < LARGE:
        return NOTHING
    gflops, share = reached
    return f"{gflops:.0f}" + ("" if share is None else f" ({share:.0%})")


def _peaks(peaks: dict[str, float]) -> list[str]:
    return [f"{gflops:.0f} on {threads}" for threads, gflops in peaks.items()]


def _time(quartiles: dict[str, Any] | None, steps: int | None) -> str:
    """Time per step, or of all where no steps are counted."""
    if quartiles is None:
        return NOTHING
    if steps is None:
        return f"{quartiles['median']:.3g} s"
    return f"{_three(quartiles['median'] / steps * 1e6)} µs"


def _first(times: dict[str, Any], baseline: str, steps: int | None) -> str:
    """Time per step of our first calls, and how many times as fast as the baseline's they are."""
    elman, reference = times.get(OURS), times.get(baseline)
    if elman is None:
        return NOTHING
    ratio = "" if reference is None else f" ({_three(reference['median'] / elman['median'])}x)"
    return _time(elman, steps) + ratio


def _loop(case: dict[str, Any]) -> str:
    return {
        "loop": " in a loop",
        "tuned-loop": " in a tuned loop",
        "elman-c": " by engine c",
        "serial": " by serial code",
    }.get(case["baseline"], "")


def _three(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(quartiles: dict[str, Any] | None, spread: bool = True) -> str:
    if quartiles is None:
        return NOTHING
    text = f"{_three(quartiles['median'])}x"
    return f"{text} ({_three(quartiles['q1'])}–{_three(quartiles['q3'])})" if spread else text


def _target(row: Row) -> str:
    """The speed-up that the suite wants at least, or the time that it wants at most; and whether
    this row misses it, or cannot tell."""
    words = {True: "", False: ", missed", None: f", {UNDECIDED}"}
    case, verdict = row["asked"], words[reached(row)]
    if case["ratio"] is not None:
        return f"≥ {case['ratio']:g}x{verdict}"
    return NOTHING if case["seconds"] is None else f"≤ {case['seconds']:g} s{verdict}"


def reached(row: Row) -> Answer:
    """Whether a row reaches its suite's target, in three rounds of four as for claims; None if it
    is between the quartiles, the suite has none, the machine was busy, or nobody has named the
    data."""
    ratio, seconds = row["asked"]["ratio"], row["asked"]["seconds"]
    if (ratio is None and seconds is None) or "skipped" in row:
        return None
    if "failed" in row:  # on a busy machine too
        return False
    if busy_in_words(row):
        return None
    if ratio is not None:
        ours = row.get("ratio", {}).get(OURS)
        return False if ours is None else spread_of(ours).reaches(ratio)
    return spread_of(row["seconds"][OURS]).within(seconds)


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
