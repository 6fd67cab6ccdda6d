"""Steps of public reports, by every way to run a scan on this processor.

    python -m benchmarks.steps.reports --out FILE.jsonl
    python -m benchmarks.steps.reports --cases "GRUCell; LTC" --sizes 100x16x64 --limit 60

Each report runs in a process of its own and gives one row: milliseconds of training steps (forward
and backward) and of forwards, in turns, and seconds of the first call of each. A contestant is
first compared with a plain loop in float64: outputs, last carries, all gradients. It is "refused"
if it raises an error, and not measured if its values are wrong. JAX runs where it is installed;
``python -m benchmarks.steps.measure --reports FILE.jsonl`` makes a page of the rows.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import scan
from torch.utils._pytree import tree_map

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row
from benchmarks.steps import in_jax
from benchmarks.steps.agreement import error, reason
from benchmarks.steps.apart import apart
from benchmarks.steps.case import floating
from benchmarks.steps.laps import quartiles
from benchmarks.steps.reported import REPORTS, Problem, Report, Scan, Sizes, Tree, leaves
from elman.steps.compiling import backend

LEAST, MOST = 3, 21  # laps of a mode
LAP_MS = 20  # a lap repeats shorter calls, as a training loop does
CLOSE = {torch.float32: 2e-3, torch.float64: 1e-8}  # of the largest of each value


class TooLongError(BaseException):
    """A first call takes longer than allowed: no compiler is to catch it."""


def plain_scan(step: Any, init: Tree, xs: Tree, *, reverse: bool = False) -> tuple[Tree, Tree]:
    """The ordinary loop."""
    order = range(len(leaves(xs)[0]))
    carry, outputs = init, []
    for t in order[::-1] if reverse else order:
        carry, y = step(carry, tree_map(lambda leaf: leaf[t], xs))  # noqa: B023
        outputs.append(y)
    return carry, tree_map(lambda *ys: torch.stack(ys), *outputs[:: -1 if reverse else 1])


def torchs_scan(step: Any, init: Tree, xs: Tree, *, reverse: bool = False) -> tuple[Tree, Tree]:
    """torch's own."""
    return scan(step, init, xs, reverse=reverse)


def elmans_scan(step: Any, init: Tree, xs: Tree, *, reverse: bool = False) -> tuple[Tree, Tree]:
    """elman's."""
    return elman.scan(step, init, xs, reverse=reverse)


Compiler = Callable[[Any], Any]
IN_TORCH: dict[str, tuple[Scan, Compiler | None]] = {
    "loop": (plain_scan, None),
    "loop, inductor": (plain_scan, torch.compile),
    "torch scan": (torchs_scan, None),
    "torch scan, inductor": (torchs_scan, torch.compile),
    "elman.scan": (elmans_scan, None),
    "backend elman": (torchs_scan, lambda run: torch.compile(run, backend=backend)),
}
JAX = "JAX lax.scan"


def values_of(report: Report, sizes: Sizes, dtype: torch.dtype) -> Problem:
    """A report's values, the same numbers in every dtype; weights and inputs ask for gradients."""
    torch.manual_seed(0)
    problem = report.problem(sizes)

    def leaf(value: Tensor, learns: bool) -> Tensor:
        value = value.to(report.dtype).to(dtype) if floating(value) else value
        return value.requires_grad_(learns and report.trained and floating(value))

    return Problem(
        *(tree_map(lambda v: leaf(v, k != 1), part) for k, part in enumerate(problem))  # noqa: B023
    )


class InTorch:
    """A report's program in torch's operations.

    Args:
        report: to run.
        problem: its values.
        cotangents: of floating-point results.
        how, compiler: the scan, and what compiles the program.
    """

    def __init__(
        self,
        report: Report,
        problem: Problem,
        cotangents: list[Tensor],
        how: Scan,
        compiler: Compiler | None,
    ) -> None:
        run = report.program(torch, how)
        self._run = compiler(run) if compiler else run
        self._problem = problem
        self._cotangents = [c.clone() for c in cotangents]
        self._given = cotangents
        self._learn = [v for v in leaves((problem.weights, problem.xs)) if v.requires_grad]

    def forward(self) -> Tree:
        """Outputs and last carries."""
        with torch.no_grad():
            return self._run(*self._problem)

    def train(self) -> tuple[Tree, Tree]:
        """(outputs, last carries), gradients of weights and inputs."""
        values = self._run(*self._problem)
        floats = [v for v in leaves(values) if floating(v)]
        asked = [(v, c) for v, c in zip(floats, self._cotangents) if v.requires_grad]
        grads = torch.autograd.grad(
            [v for v, _ in asked], self._learn, [c for _, c in asked], allow_unused=True
        )
        return values, grads

    @property
    def writes(self) -> bool:
        """Whether its backward has written into the gradients that it is given."""
        return not all(map(torch.equal, self._cotangents, self._given))


def cotangents_of(report: Report, problem: Problem) -> list[Tensor]:
    """One for each floating-point result, the same numbers in every dtype."""
    with torch.no_grad():
        results = report.program(torch, plain_scan)(*problem)
    torch.manual_seed(1)
    floats = [v for v in leaves(results) if floating(v)]
    return [torch.randn(v.shape, dtype=torch.float64).to(v.dtype) for v in floats]


def differences(found: tuple[Tree, ...], wanted: tuple[Tree, ...]) -> dict[str, list[float]]:
    """How far off results and gradients are, each relative to its largest number."""
    told = {}
    for name, got, want in zip(("values", "gradients"), found, wanted):
        pairs = zip(leaves(got), leaves(want), strict=True)
        told[name] = [error(g, w) for g, w in pairs if w is not None and floating(w)]
    return told


def verdict(off: dict[str, list[float]], most: float) -> str:
    """What is wrong; "" if nothing."""
    for name, errors in off.items():
        wrong = [e for e in errors if e > most]
        if wrong:
            return f"wrong {name}: {len(wrong)} of {len(errors)}, up to {max(wrong):.2g} off"
    return ""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLongError inside of the block after some seconds."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def results(contestant: Any, mode: str) -> tuple[Tree, ...]:
    """(outputs, last carries), in training also gradients: torch's tensors."""
    found = getattr(contestant, mode)()
    found = found if mode == "train" else (found,)
    return in_jax.given_back(found) if isinstance(contestant, in_jax.InJax) else found


def end_compilers() -> None:
    """Kill C++ compilers that workers of inductor left running: they would take a core from all
    that is measured afterwards."""
    parents = dict[int, tuple[int, str]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            parents[int(path.parent.name)] = int(rest.split()[1]), name

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid][0]
        return pid == os.getpid()

    for pid, (_, name) in parents.items():
        if name in ("cc1plus", "g++", "c++") and is_ours(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def first_calls(
    report: Report, contestant: Any, wanted: tuple[Tree, ...], limit: float
) -> dict[str, Any]:
    """Compile a contestant and compare it.

    Returns:
        ``first_s``, seconds of its first calls by mode; ``off``, how far it is off; or ``refused``
        or ``wrong``, why it is not measured.
    """
    told: dict[str, Any] = {"first_s": {}}
    try:
        for mode in report.modes:
            begin = time.perf_counter()
            with at_most(limit):
                found = results(contestant, mode)
            told["first_s"][mode] = round(time.perf_counter() - begin, 3)
            off = differences(found, wanted)
            told.setdefault("off", {name: float(f"{max(es):.2g}") for name, es in off.items()})
            wrong = verdict(off, CLOSE[report.dtype])
            if isinstance(contestant, InTorch) and contestant.writes:
                wrong = "its backward writes into the gradients that it is given"
            if wrong:
                return told | {"wrong": wrong}
    except TooLongError:
        end_compilers()
        return told | {"refused": f"its first call is not finished within {limit:.0f} s"}
    except Exception as problem:
        return told | {"refused": reason(problem)}
    return told


def race(contestants: dict[str, Any], mode: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of a call of each, in turns: quartiles of laps."""
    calls = {name: getattr(contestant, mode) for name, contestant in contestants.items()}
    for call in calls.values():
        call()
    gc.collect()
    gc.freeze()  # collections skip what inductor's compilers have left, which takes seconds
    repeats = {name: max(1, int(LAP_MS / lap_of(call, 2))) for name, call in calls.items()}
    laps: dict[str, list[float]] = {name: [] for name in calls}
    names = [*calls]
    begin, count = time.perf_counter(), 0
    while count < LEAST or (count < MOST and time.perf_counter() - begin < seconds):
        for name in names[count % len(names) :] + names[: count % len(names)]:
            laps[name].append(lap_of(calls[name], repeats[name]))
        count += 1
    return {name: quartiles(times) for name, times in laps.items()}


def lap_of(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of a call, the mean of some. What other contestants leave is collected before,
    and of short calls one more comes first: after torch's scan any list of Python's takes 17 ms."""
    gc.collect()
    if repeats > 1:
        call()
    since = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1000 * (time.perf_counter() - since) / repeats


def measure(name: str, options: argparse.Namespace) -> Row:
    """The row of a report."""
    report = REPORTS[name]
    sizes = Sizes(*map(int, options.sizes.split("x"))) if options.sizes else report.sizes
    row: Row = {"case": name, "source": report.source, "says": report.says, **sizes._asdict()}
    row |= {"dtype": str(report.dtype).removeprefix("torch."), "machine": facts(), **code()}
    row["jax"] = in_jax.version()
    exact = values_of(report, sizes, torch.float64)
    loop = InTorch(report, exact, cotangents_of(report, exact), *IN_TORCH["loop"])
    wanted = results(loop, report.modes[0])
    problem = values_of(report, sizes, report.dtype)
    cotangents = cotangents_of(report, problem)
    asked = listed(options.contestants, [*IN_TORCH, JAX], "contestants")
    contestants: dict[str, Any] = {
        title: InTorch(report, problem, cotangents, *how)
        for title, how in IN_TORCH.items()
        if title in asked
    }
    row["contestants"] = told = {}
    if JAX in asked and in_jax.absent():
        told[JAX] = {"refused": in_jax.absent()}
    elif JAX in asked:
        contestants[JAX] = in_jax.InJax(report, problem, cotangents)
    for title, contestant in [*contestants.items()]:
        told[title] = first_calls(report, contestant, wanted, options.limit)
        if told[title].keys() & {"refused", "wrong"}:
            del contestants[title]
    for mode in report.modes:
        for title, times in race(contestants, mode, options.seconds).items():
            told[title].setdefault("ms", {})[mode] = times
    return row


def listed(text: str, known: list[str], what: str) -> list[str]:
    """Names of a list with semicolons; without any, all that are known."""
    names = [name.strip() for name in text.split(";")] if text else known
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no such {what}: {'; '.join(unknown)}")
    return names


def line(row: Row) -> str:
    """A row for a terminal."""
    if "failed" in row:
        return f"{row['case']:28}failed: {row['failed']}"
    told = []
    for title, of in row["contestants"].items():
        why = of.get("refused") or of.get("wrong")
        times = of.get("ms")
        first = next(iter(times.values()))[1] if times else 0.0
        told.append(f"{title} {first:.4g} ms" if times else f"{title}: {why[:40]}")
    return f"{row['case']:28}{'; '.join(told)}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--cases", default="", help="names, by semicolons; all without it")
    add("--contestants", default="", help="names, by semicolons; all without it")
    add("--sizes", default="", help="TxBxH instead of each report's own")
    add("--seconds", type=float, default=8, help="for the laps of a mode")
    add("--limit", type=float, default=120, help="seconds for a first call")
    add("--threads", type=int, default=2)
    add("--out", type=Path, help="rows are appended to it")
    add("--list", action="store_true", help="show the reports")
    add("--alone", help=argparse.SUPPRESS)
    return parser.parse_args()


def row_of(name: str, options: argparse.Namespace) -> Row:
    """The row of a report, measured in a process of its own, with caches of its own."""
    words = ["benchmarks.steps.reports", "--alone", name]
    for option in ("contestants", "sizes", "seconds", "limit", "threads"):
        words += [f"--{option}", str(getattr(options, option))]
    limit = 2 * (len(IN_TORCH) + 1) * (options.limit + 60)
    with tempfile.TemporaryDirectory() as caches:
        row = apart(words, options.threads, limit, {"TORCHINDUCTOR_CACHE_DIR": caches})
    return row if isinstance(row, dict) else {"case": name, "failed": row}


def main() -> None:
    """Measure and show."""
    options = arguments()
    if options.list:
        for name, report in REPORTS.items():
            print(f"{name:28}{report.source:36}{report.says}")
        return
    if options.alone:
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("error", category=elman.errors.StepWarning)
        torch.set_num_threads(options.threads)
        torch._dynamo.config.recompile_limit = 64  # one code of a program for all contestants
        torch._dynamo.config.capture_scalar_outputs = True  # without it, inductor runs no scan
        print(json.dumps(measure(options.alone, options)))
        return
    for name in listed(options.cases, [*REPORTS], "reports"):
        row = row_of(name, options)
        if options.out:
            append_row(options.out, row)
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
