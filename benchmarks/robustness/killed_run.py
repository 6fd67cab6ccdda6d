"""`elman`, in a process that kills itself (SIGKILL) at a place that ``STRIKE`` names.

    STRIKE='{"place": "write", …}' python benchmarks/robustness/killed_run.py train …

`kills.py` starts it. The process strikes once: it leaves a mark first, by which those
that are started anew know. Needs /proc.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STRIKE = "STRIKE"


@dataclass(frozen=True)
class Strike:
    """A kill: place and moment in a process, and whether all others are killed too.

    Attributes:
        place: a name of :data:`PLACES`.
        rank: of the process that strikes.
        call: at which call of the place's function.
        share: of a file that is written before; where the place takes time, of ``most_s``.
        most_s: longest delay (s).
        all: whether all processes of the run are killed, the one that started them too.
        mark: file that says that it has killed, and where.
    """

    place: str
    rank: int
    call: int
    share: float
    most_s: float
    all: bool
    mark: str

    def text(self) -> str:
        """JSON for the variable ``STRIKE``."""
        return json.dumps(asdict(self))

    def fire(self, location: str) -> None:
        """Kill, unless that was done before."""
        try:
            with open(self.mark, "x", encoding="utf-8") as file:
                file.write(location)
        except FileExistsError:
            return
        for pid in family() if self.all else ():
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def fire_later(self, location: str) -> None:
        """Kill a share of the longest delay from now, whatever the process does then."""

        def run() -> None:
            time.sleep(self.share * self.most_s)
            self.fire(location)

        threading.Thread(target=run, daemon=True).start()

    def within(self, location: str, args: tuple[Any, ...]) -> None:
        """Kill within a call that takes time."""
        del args
        self.fire_later(location)

    def before(self, location: str, args: tuple[Any, ...]) -> None:
        """Kill before a call that takes none."""
        self.fire(f"{location} {Path(args[0]).name}")

    def in_file(self, location: str, args: tuple[Any, ...]) -> None:
        """Write a share of a file, then kill."""
        path, content = Path(args[0]), args[1]
        size = int(self.share * len(content))
        path.write_bytes(content[:size])
        self.fire(f"{location} {path.parent.name}/{path.name}, {size} of {len(content)} bytes")

    def in_line(self, location: str, args: tuple[Any, ...]) -> None:
        """Write a share of a row of metrics.csv, then kill."""
        from elman.train.loop.metrics import line_of

        line = line_of(args[1])
        with open(args[0].path, "a", encoding="utf-8") as file:
            file.write(line[: int(self.share * len(line))])
        self.fire(location)


def family() -> list[int]:
    """The other processes of the run: the one that started this one if it belongs to it, and all
    that it has started."""
    parent = os.getppid()
    words = Path(f"/proc/{parent}/cmdline").read_bytes()
    root = parent if b"torch.distributed.run" in words or b"killed_run.py" in words else os.getpid()
    children = [
        int(child)
        for thread in Path(f"/proc/{root}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [pid for pid in (root, *children) if pid != os.getpid()]


@dataclass(frozen=True)
class Place:
    """A place in the code at which a process can be killed.

    Attributes:
        owner: module or class, as ``module`` or ``module:Class``; empty: the process itself.
        function: of it; the strike counts its calls.
        action: what is done at that call.
        calls: a run makes about so many.
        most_s: how long it takes (s).
        cold: pattern of files of the cache that must be missing for it to be called.
        first: whether the first process alone calls it.
    """

    owner: str
    function: str
    action: Callable[[Strike, str, tuple[Any, ...]], None]
    calls: int = 1
    most_s: float = 0.0
    cold: str = ""
    first: bool = False


PLACES = {
    "start": Place("", "", Strike.within, most_s=4.0),
    "compile": Place(
        "elman.engines.c.compilation.build",
        "_compile",
        Strike.within,
        most_s=0.5,
        cold="kernels/*.so",
    ),
    "measure": Place(
        "elman.tuning.choose", "_benchmark", Strike.within, most_s=0.25, cold="tuning/*.json"
    ),
    "step": Place(
        "elman.train.loop.stepper:Stepper", "train", Strike.within, calls=60, most_s=0.02
    ),
    "validate": Place(
        "elman.train.loop.stepper:Stepper", "validate", Strike.within, 4, most_s=0.05
    ),
    "write": Place("elman.files", "write_through", Strike.in_file, calls=50, first=True),
    "rename": Place("elman.files", "sync_folder", Strike.before, calls=35, first=True),
    "remove": Place("shutil", "rmtree", Strike.before, calls=12, first=True),
    "metrics": Place(
        "elman.train.loop.metrics:MetricsFile", "append", Strike.in_line, 14, first=True
    ),
}


def arm(strike: Strike) -> None:
    """Have the process killed at its place."""
    place = PLACES[strike.place]
    if not place.owner:
        place.action(strike, "start", ())
        return
    module, _, name = place.owner.partition(":")
    owner = __import__(module, fromlist=["_"])
    owner = getattr(owner, name) if name else owner
    plain, calls = getattr(owner, place.function), [0]

    @functools.wraps(plain)
    def counted(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == strike.call:
            place.action(strike, f"{strike.place} {calls[0]}", args)
        return plain(*args, **options)

    setattr(owner, place.function, counted)


def main() -> None:
    """Arm, if this is the process that is meant, and do what `elman` does."""
    strike = Strike(**json.loads(os.environ[STRIKE]))
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if int(rank) == strike.rank and not Path(strike.mark).exists():
        arm(strike)
    from elman.cli import main as run

    run()


if __name__ == "__main__":
    main()
