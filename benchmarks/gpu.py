"""Measure elman's kernels on a GPU beside torch.nn (cuDNN), in one command.

    python benchmarks/gpu.py                     # nine minutes; writes gpu.jsonl and gpu.md
    python benchmarks/gpu.py --only 'gru*' --seconds 120
    python benchmarks/gpu.py --dry               # tiny cases in Triton's interpreter, on a CPU

First the tests marked gpu run, those of the newest kernels before the others, for at most
--testing seconds (--untested leaves them out). Cases come in order of importance. Each is checked
on the device before it is timed, written as soon as it is measured, and left out when the file has
it already. Cases run in a process of their own, this file with --work: one that crashes or hangs
costs its own row. Needs torch, triton and numpy, and this checkout; the tests also what its extra
dev brings.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402

from benchmarks.machine import commit  # noqa: E402
from benchmarks.on_gpu.cases import TINY, Case, cases  # noqa: E402
from benchmarks.on_gpu.kernels import REASON  # noqa: E402
from benchmarks.on_gpu.measuring import compile_for, measure  # noqa: E402
from benchmarks.programs import ProcessError, Worker  # noqa: E402
from benchmarks.rows import append_row, read_rows  # noqa: E402

LIMIT_S = 90.0  # of one case, compiling included
NEWEST = ("engines/triton/test_triton_matrices.py", "engines/triton/test_triton_models.py")


def work(do: Callable[[Case, str], dict[str, Any]], device: str) -> None:
    """Read cases, write rows: a line of JSON each."""
    torch.manual_seed(0)
    for text in sys.stdin:
        start = time.perf_counter()
        try:
            row: dict[str, Any] = do(Case(**json.loads(text)), device)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:REASON]}
        row["took"] = round(time.perf_counter() - start, 2)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        if "CUDA" in row.get("failed", ""):  # nothing that follows in this process would be right
            sys.exit(1)


def ask(worker: Worker, case: Case, limit: float) -> dict[str, Any]:
    """A row, or why there is none; after some failures the worker is gone."""
    try:
        row = worker.ask(asdict(case), limit)
    except ProcessError as error:
        return {"failed": str(error)}
    if "CUDA" in row.get("failed", ""):  # it ends by itself, but not at once
        worker.close()
    return row


def warm(todo: list[Case], device: str, seconds: float) -> None:
    """Compile for some cases, each in one of several processes; nothing is timed meanwhile."""
    count = min(max(1, (os.cpu_count() or 1) - 2), len(todo))
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def compile_all(cases: list[Case]) -> None:
        text = "".join(json.dumps(asdict(case)) + "\n" for case in cases)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                working("compile", device), input=text, text=True, timeout=seconds, **options
            )

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(compile_all, (todo[number::count] for number in range(count))))


def working(task: str, device: str) -> list[str]:
    """The command of a process that measures cases, or compiles for them."""
    return [sys.executable, __file__, "--work", task, device]


def facts(device: str) -> dict[str, Any]:
    """Machine, versions and commit."""
    import triton

    on_gpu = device == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "none (interpreted)",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "commit": commit(),
    }


def line(row: dict[str, Any], peaks: dict[str, float]) -> str:
    """A row of the table: microseconds per step, forward and with the backward."""
    if "failed" in row:
        return f"{row['case']:36} failed: {row['failed'][:80]}"
    if "text" in row:
        return f"{row['case']:36} {row['text']}"
    pairs = {name: _pair(row[name], row["T"]) for name in ("elman", *PEERS) if row.get(name)}
    peers = [name for name in pairs if name != "elman"]
    ratio = shares = "-"
    if peers and "elman" in pairs:
        ratio = f"{row[peers[0]][1] / row['elman'][1]:.2f}x"
        if peaks and "flop" in row:
            product = "tf32" if row["dtype"] == "float32" else row["dtype"]
            least = row["flop"] / peaks[product], row["bytes"] / peaks["copy"]
            shares = "/".join(f"{100 * seconds / row['elman'][1]:.0f}" for seconds in least)
    elman, torchs = (pairs.get(name, _pair((None, None), 1)) for name in ("elman", "torch"))
    others = ", ".join(f"{name} {pairs[name]}" for name in peers if name != "torch")
    columns = f"{row['case']:36} {elman} {torchs} {ratio:>8} {shares:>7}"
    return f"{columns} {row.get('best', '-'):18} {others}".rstrip()


def _pair(times: Sequence[float | None], steps: int) -> str:
    """Microseconds per step of a contestant, forward and with the backward."""
    texts = ("-" if s is None else f"{s / steps * 1e6:.2f}" for s in times)
    return " ".join(f"{text:>8}" for text in texts)


def report(rows: list[dict[str, Any]], machine: dict[str, Any], file: Path) -> None:
    """The table as a page of Markdown, with what was refused and why."""
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    table = "\n".join([HEAD, *(line(row, peaks_of(rows)) for row in rows)])
    refused = "\n".join(
        f"- {row['case']}, {schedule}: {' '.join(reason.split())[:300]}"
        for row in rows
        for schedule, reason in row.get("refused", {}).items()
    )
    file.write_text(
        f"# elman on a GPU\n\n{facts}\n\n```\n{table}\n```\n\n"
        "Microseconds per step; ratio of forward and backward to the first other that was measured "
        "(torch.nn in the same dtype, else a loop); shares of the matrix and copy peaks in "
        f"percent.\n\n## Not run\n\n{refused}\n"
    )


def peaks_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Measured peaks of the device; {} if there are none."""
    return next((row["peaks"] for row in rows if "peaks" in row), {})


PEERS = ("torch", "fla", "chunks", "compiled loop", "python loop", "product per step", "in turn")
HEAD = (
    f"{'case (T,B,H)':36} {'elman fw':>8} {'fw+bw':>8} {'torch fw':>8} {'fw+bw':>8} {'ratio':>8} "
    f"{'peaks %':>7} {'schedule':18} others"
)


def run_tests(failures: Path, seconds: float) -> bool:
    """Run the tests marked gpu on all cores, for so many seconds at most: whether all passed.

    Reports of failures are in a file as soon as there are any. Each case checks its own kernels, so
    that a failed test costs no row.
    """
    # pytest-benchmark warns under xdist, and warnings are errors
    words = ["-m", "pytest", "-q", "-m", "gpu and not long", "-n", "auto", "--timeout=900"]
    words += ["-p", "no:benchmark", f"--failures={failures.absolute()}"]
    words += [str(ROOT / "tests" / name) for name in NEWEST] + [str(ROOT / "tests")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    options: dict[str, Any] = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": paths}}
    process = subprocess.Popen([sys.executable, *words], start_new_session=True, **options)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"the tests took longer than {seconds:.0f} s; failures so far are in {failures}")
        return False
    if status:
        print(
            f"pytest -m gpu ended with status {status}: {failures}. It needs pip install '.[dev]'"
        )
    return not status


def main() -> None:
    """Measure what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=520.0, help="of all, tests included: no case begins later"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--only", default="*", help="cases whose names fit this pattern")
    parser.add_argument("--dry", action="store_true", help="tiny cases, in Triton's interpreter")
    parser.add_argument("--untested", action="store_true", help="without the tests marked gpu")
    parser.add_argument("--testing", type=float, default=150.0, help="seconds of the tests at most")
    parser.add_argument(
        "--warming", type=float, default=120.0, help="seconds of it for compiling on all cores"
    )
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        task, device = options.work
        work({"measure": measure, "compile": compile_for}[task], device)
        return
    device = "cpu" if options.dry else "cuda"
    begin, passed = time.monotonic(), True
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # of the workers
    else:
        if not torch.cuda.is_available():
            sys.exit("no GPU is at hand; --dry runs tiny cases in Triton's interpreter")
        if not options.untested:
            passed = run_tests(options.out.with_suffix(".failures.txt"), options.testing)
    machine = facts(device)
    rows = {name: row for name, row in read_rows(options.out).items() if row["machine"] == machine}
    end = begin + options.seconds
    todo = [
        case
        for case in (TINY if options.dry else cases())
        if fnmatchcase(case.name, options.only)
        and "failed" in rows.get(case.name, {"failed": "not measured"})
    ]
    if todo and not options.dry:
        warm(todo, device, options.warming)
    command, limit = working("measure", device), options.seconds if options.dry else LIMIT_S
    worker = Worker(command)
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}; us per step")
    print(HEAD)
    for case in todo:
        remaining = end - time.monotonic()
        if remaining <= 0:
            break
        if not worker.alive:
            worker = Worker(command)
        row = ask(worker, case, min(limit, remaining + 10.0))
        row = {"case": case.name, **asdict(case), **row, "machine": machine}
        append_row(options.out, row)
        rows[case.name] = row
        print(line(row, peaks_of([*rows.values()])), flush=True)
    report([*rows.values()], machine, options.out.with_suffix(".md"))
    worker.close()
    failed = sum("failed" in row for row in rows.values())
    print(f"{len(rows)} rows in {options.out}, {failed} failed; table in {options.out.stem}.md")
    sys.exit(0 if passed else "not all tests marked gpu passed")


if __name__ == "__main__":
    main()
