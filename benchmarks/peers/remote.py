"""A contestant in this process, or in one of its own for libraries with threads of their own.

Two pools of threads in one process, or one that spins while the other computes, would measure
neither. ``python -m benchmarks.peers.remote`` reads a case, a contestant's name and a folder for
its results, and then times so many calls as each further line of its input asks for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.cases import packed, unpacked
from benchmarks.problem import Contestant, Problem, Results, draw_problem
from benchmarks.programs import Worker, environment, program

_OVERLAP = 20  # times the calls of a sample: what begins and ends alone is a small part of it


class Remote:
    """The near end: starts the process, asks it, ends it."""

    def __init__(self, name: str, problem: Problem) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="elman-peer-")
        far = program("peers.remote", threads=problem.case.threads)
        self.worker = Worker([sys.executable, "-P", *far.words], environment(far))
        self.answer = self.worker.ask(packed(problem.case, name, self.folder.name))

    def ask(self, calls: int) -> float:
        """Seconds per call. Raises ProcessError: the process has ended."""
        return self.worker.ask(calls)

    def results(self) -> Results:
        """Results of the remote contestant."""
        return torch.load(Path(self.folder.name) / "results.pt", weights_only=True)

    def close(self) -> None:
        """End the process."""
        self.worker.close()
        self.folder.cleanup()


def enter(name: str, problem: Problem) -> Contestant | str:
    """A contestant of a problem, where it is to run; or why it is absent."""
    measure = problem.case.measure
    assert measure.enter is not None, "the case has contestants"
    return (remote if name in measure.apart else measure.enter)(name, problem)


def remote(name: str, problem: Problem, copies: int = 1) -> Contestant | str:
    """A contestant elsewhere, or why it is absent; of several copies each is in a process, and all
    run at once on the same cores."""
    if problem.x.dtype != torch.float32:
        return "it runs in float32"
    processes = [Remote(name, problem) for _ in range(copies)]

    def close() -> None:
        for process in processes:
            process.close()

    def sample(calls: int) -> float:
        if copies == 1:
            return processes[0].ask(calls)
        with ThreadPoolExecutor(copies) as threads:
            return fmean(threads.map(lambda process: process.ask(_OVERLAP * calls), processes))

    answer = processes[0].answer
    if "absent" in answer:
        close()
        return str(answer["absent"])
    wants, facts = tuple(answer["wants"]), dict(answer["facts"])
    return Contestant(lambda: sample(1), processes[0].results, wants, lambda: facts, sample, close)


def main() -> None:
    """The far end."""
    case, name, folder = unpacked(json.loads(sys.stdin.readline()))
    torch.set_num_threads(case.threads)
    contestant = case.measure.enter(name, draw_problem(case))
    if isinstance(contestant, str):
        answer({"absent": contestant})
        return
    torch.save(contestant.results(), Path(folder) / "results.pt")
    answer({"wants": contestant.wants, "facts": contestant.facts()})
    for line in sys.stdin:
        calls = int(line)
        if calls > 1:
            contestant.run()  # threads that slept are awake then
        start = time.perf_counter()
        for _ in range(calls):
            contestant.run()
        answer((time.perf_counter() - start) / calls)


def answer(value: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
