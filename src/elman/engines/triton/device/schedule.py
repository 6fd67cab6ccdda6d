"""How a program runs on a GPU: data that the tuner chooses among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.errors import EngineError

LoopKind = Literal["loop", "grid", "steps"]


@dataclass(frozen=True)
class TritonSchedule:
    """One way to run a program.

    Attributes:
        kind: ``loop``: all steps in one kernel, each program keeps all weights on chip for its
            samples; ``grid``: the same, units cut over programs that synchronise in each step;
            ``steps``: each step is products and kernels of its own, whatever the size.
        samples: of one program.
        warps: of one program.
        units: of one program, in a grid, or of matrices along an axis that is cut; 0: all.
    """

    kind: LoopKind = "loop"
    samples: int = 16
    warps: int = 4
    units: int = 0

    @property
    def name(self) -> str:
        """``loop/16/4``, of shares of matrices ``loop/1/4/16``, ``grid/16/8/16``, or ``steps``."""
        numbers = {
            "steps": (),
            "loop": (self.samples, self.warps, *([self.units] if self.units else [])),
            "grid": (self.samples, self.warps, self.units),
        }[self.kind]
        return "/".join([self.kind, *map(str, numbers)])

    @staticmethod
    def parse(name: str) -> TritonSchedule:
        """The schedule of a name. Raises EngineError for a text that is none."""
        kind, *numbers = name.split("/")
        if kind == "steps" and not numbers:
            return TritonSchedule("steps")
        if all(n.isdecimal() and int(n) for n in numbers):
            values = [int(n) for n in numbers]
            if kind == "loop" and len(values) in (0, 2, 3):
                return TritonSchedule("loop", *values)
            if kind == "grid" and len(values) == 3:
                return TritonSchedule("grid", *values)
        raise EngineError(
            f"no schedule {name!r}; there are steps, loop/SAMPLES/WARPS, "
            f"loop/SAMPLES/WARPS/UNITS of matrices, and grid/SAMPLES/WARPS/UNITS"
        )
