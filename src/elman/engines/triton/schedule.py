"""How a program runs on a GPU: data that the tuner chooses among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.errors import EngineError

Kind = Literal["loop", "grid", "steps"]


@dataclass(frozen=True)
class Schedule:
    """One way to run a program.

    Attributes:
        kind: ``loop``: all steps in one kernel, each program keeps all weights on chip for its
            samples; ``grid``: the same, units cut over programs that meet in each step; ``steps``:
            each step is products and kernels of its own, whatever the size.
        samples: of one program.
        warps: of one program.
        stages: how far loads run ahead of the steps.
        units: of one program, of a grid.
    """

    kind: Kind = "loop"
    samples: int = 16
    warps: int = 4
    stages: int = 2
    units: int = 0

    @property
    def name(self) -> str:
        """``loop/16/4/2``, ``grid/16/8/1/16``, or ``steps``."""
        numbers = (self.samples, self.warps, self.stages, self.units)
        count = {"steps": 0, "loop": 3, "grid": 4}[self.kind]
        return "/".join([self.kind, *map(str, numbers[:count])])

    @staticmethod
    def parse(name: str) -> Schedule:
        """The schedule of a name. Raises EngineError for a text that is none."""
        kind, *numbers = name.split("/")
        if kind == "steps" and not numbers:
            return Schedule("steps")
        if all(n.isdecimal() and int(n) for n in numbers):
            if kind == "loop" and len(numbers) in (0, 3):
                return Schedule("loop", *map(int, numbers))
            if kind == "grid" and len(numbers) == 4:
                return Schedule("grid", *map(int, numbers))
        raise EngineError(
            f"no schedule {name!r}; there are steps, loop/SAMPLES/WARPS/STAGES, and "
            f"grid/SAMPLES/WARPS/STAGES/UNITS"
        )
