"""Everything public called with random arguments: does each call return, or say what is wrong?

    python benchmarks/robustness/random_arguments.py [--count 5000] [--seed 0] [--workers 2]
        [--only ops.]

A call that neither returns nor raises an error of elman's, of Python's binding of arguments, or of
torch's own layer given the same (tests/random_calls.py says it precisely), one that ends its
process, and one that takes longer than half a minute are failures. Each is printed with its seed
and the text to paste; then how many calls ended in which way. The status is 1 if one failed.
Processes are forked, each for some calls, so that one that dies takes no others with it. `--show
SEED` prints the call of a seed, runs it and prints what was raised.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from forking import Ended, forked

from random_calls import ADDRESS_SPACE, Place, RandomCall, Verdict, random_call, verdict

BATCH = 50  # calls of one process
GRACE_S = 15.0  # beyond the limit, within which Python has to notice it


class Row(NamedTuple):
    """A call that was made."""

    seed: int
    call: RandomCall
    verdict: Verdict


def _make_call(seed: int, place: Place) -> Verdict:
    """Make a call in a process for some of them, which says nothing."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(os.devnull, "wb") as quiet:
        os.dup2(quiet.fileno(), 1)
        os.dup2(quiet.fileno(), 2)
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    try:
        judgement = verdict(random_call(seed), place._replace(folder=folder))
    except BaseException as error:
        judgement = Verdict(f"{type(error).__name__} of the judge", False, str(error))
    shutil.rmtree(folder, ignore_errors=True)
    return judgement


def make_calls(seeds: Sequence[int], workers: int, place: Place) -> Iterator[Row]:
    """Make the calls of some seeds in processes of their own, in any order."""
    calls = forked(
        seeds,
        partial(_make_call, place=place),
        batch=BATCH,
        workers=workers,
        limit_s=lambda seed: random_call(seed).limit_s + GRACE_S,
    )
    for seed, judgement in calls:
        if isinstance(judgement, Ended):
            judgement = Verdict(str(judgement), False, "")
        yield Row(seed, random_call(seed), judgement)


def prepare(root: Path) -> Place:
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
        place = prepare(root)
        if options.show is not None:
            call = random_call(options.show)
            print(call.target, call.text, verdict(call, place), sep="\n")
            return 0
        seeds = range(options.seed, options.seed + options.count)
        selected = [seed for seed in seeds if random_call(seed).target.startswith(options.only)]
        counts: Counter[tuple[bool, str]] = Counter()
        for row in make_calls(selected, options.workers, place):
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
