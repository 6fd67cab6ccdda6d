"""Everything public called with random arguments: does each call return, or say what is wrong?

    python benchmarks/robustness/random_arguments.py [--count 5000] [--seed 0] [--workers 2]
        [--only ops.]

A call that neither returns nor raises an error of elman's, of Python's binding of arguments, or of
torch's own layer given the same (tests/random_calls.py says it precisely), one that ends its
process, and one that takes longer than ten seconds are failures. Each is printed with its seed and
the text to paste; then how many calls ended in which way. The status is 1 if one failed. Processes
are forked, each for some calls, so that one that dies takes no others with it. `--show SEED` prints
the call of a seed, runs it and prints what was raised.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from random_calls import ADDRESS_SPACE, Place, RandomCall, Verdict, random_call, verdict

BATCH = 50  # calls of one process
GRACE_S = 15.0  # beyond the limit, within which Python has to notice it


class Row(NamedTuple):
    """A call that was made."""

    seed: int
    call: RandomCall
    verdict: Verdict


class _Worker:
    """A process that makes some calls, and says of each how it ended."""

    def __init__(self, seeds: Sequence[int], root: Path, place: Place) -> None:
        self.left = list(seeds)
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(read)
            _make_calls(seeds, os.fdopen(write, "wb", buffering=0), root, place)
        os.close(write)
        self.said, self.since, self._rest = read, time.monotonic(), b""

    def rows(self) -> Iterator[Row]:
        """The calls made since; of one that ended the process, or had to be ended, that."""
        data = os.read(self.said, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.since = time.monotonic()
            yield self._row(Verdict(*json.loads(line)))
        if not data:
            _, status = os.waitpid(self.pid, 0)
            os.close(self.said)
            if self.left:
                kind = f"ended by {signal.Signals(status & 127).name}" if status & 127 else "ended"
                yield self._row(Verdict(kind, False, f"status {status}"))
            self.pid = 0

    def check(self) -> None:
        """End the process if its call takes far too long."""
        limit = random_call(self.left[0]).limit_s if self.left else 0.0
        if time.monotonic() - self.since > limit + GRACE_S:
            os.kill(self.pid, signal.SIGKILL)

    def _row(self, verdict: Verdict) -> Row:
        seed = self.left.pop(0)
        return Row(seed, random_call(seed), verdict)


def _make_calls(seeds: Sequence[int], said: BinaryIO, root: Path, place: Place) -> None:
    """Make calls in this process, and end it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(dir=root))
        try:
            verdict_of = verdict(random_call(seed), place._replace(folder=folder))
        except BaseException as error:
            verdict_of = Verdict(f"{type(error).__name__} of the judge", False, str(error))
        said.write(json.dumps(verdict_of).encode() + b"\n")
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def make_calls(seeds: Sequence[int], workers: int, root: Path, place: Place) -> Iterator[Row]:
    """Make the calls of some seeds in processes of their own, in any order."""
    waiting = [list(seeds[k : k + BATCH]) for k in range(0, len(seeds), BATCH)][::-1]
    running: list[_Worker] = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(_Worker(waiting.pop(), root, place))
        ready, _, _ = select.select([worker.said for worker in running], [], [], 1.0)
        for worker in [worker for worker in running if worker.said in ready]:
            yield from worker.rows()
            if not worker.pid:
                running.remove(worker)
                if worker.left:
                    waiting.append(worker.left)
        for worker in running:
            worker.check()


def prepared(root: Path) -> Place:
    """A trained run to be loaded, and the text that it was trained on."""
    from run_folders import small_run

    run = small_run(root / "trained")
    return Place(root, run, root / "trained" / "text.txt")


def main(words: Sequence[str] | None = None) -> int:
    """Make the calls and print what became of them; the status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="calls whose name begins so")
    parser.add_argument("--show", type=int, help="one call, by its seed")
    options = parser.parse_args(words)
    os.environ.setdefault("ELMAN_CFLAGS", "-O0")
    root = Path(tempfile.mkdtemp(prefix="elman-calls-"))
    os.environ.setdefault("ELMAN_CACHE", str(root / "cache"))
    try:
        place = prepared(root)
        if options.show is not None:
            call = random_call(options.show)
            print(call.target, call.text, verdict(call, place), sep="\n")
            return 0
        seeds = range(options.seed, options.seed + options.count)
        chosen = [seed for seed in seeds if random_call(seed).target.startswith(options.only)]
        counts: Counter[tuple[bool, str]] = Counter()
        for row in make_calls(chosen, options.workers, root, place):
            counts[row.verdict.right, row.verdict.kind] += 1
            if not row.verdict.right:
                print(f"--- {row.call.target}, seed {row.seed}", row.call.text, sep="\n")
                print(row.verdict.text, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    failed = sum(count for (right, _), count in counts.items() if not right)
    for (right, kind), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"{count:6}  {kind}{'' if right else '  FAILED'}")
    print(f"{sum(counts.values())} calls, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
