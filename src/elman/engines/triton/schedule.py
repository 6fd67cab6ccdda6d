"""How a program runs on a GPU: data that the tuner chooses among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.errors import EngineError

Kind = Literal["loop", "steps"]


@dataclass(frozen=True)
class Schedule:
    """One way to run a program.

    Attributes:
        kind: ``loop``: all steps in one kernel, each program keeps all weights on chip for its
            samples; ``steps``: each step is products and kernels of its own, whatever the size.
        samples: of one program.
        warps: of one program.
        stages: how far loads run ahead of the steps.
    """

    kind: Kind = "loop"
    samples: int = 16
    warps: int = 4
    stages: int = 2

    @property
    def name(self) -> str:
        """``loop/16/4/2``, or ``steps``."""
        if self.kind == "steps":
            return self.kind
        return f"{self.kind}/{self.samples}/{self.warps}/{self.stages}"

    @staticmethod
    def parse(name: str) -> Schedule:
        """The schedule of a name. Raises EngineError for a text that is none."""
        kind, *numbers = name.split("/")
        if kind == "steps" and not numbers:
            return Schedule("steps")
        if kind == "loop" and len(numbers) in (0, 3) and all(n.isdecimal() for n in numbers):
            return Schedule("loop", *map(int, numbers))
        raise EngineError(f"no schedule {name!r}; there are steps, and loop/SAMPLES/WARPS/STAGES")
