"""What the programs print: the loss of each training step, and its time on the processor (ms)."""

from __future__ import annotations

import time
from typing import Any


class Laps:
    """The time from step to step, in which other processes have no part."""

    def __init__(self) -> None:
        self.last = time.process_time()

    def step(self, loss: Any) -> None:
        """Print a step's line."""
        now = time.process_time()
        print("step", repr(float(loss)), 1000 * (now - self.last), flush=True)
        self.last = time.process_time()


def recorder(callback: Any) -> Any:
    """A callback of Lightning, of the package whose class it is given."""

    class Recorder(callback):
        def on_train_start(self, *_: Any) -> None:
            self.laps = Laps()

        def on_train_batch_end(self, _: Any, model: Any, outputs: Any, *__: Any) -> None:
            self.laps.step(outputs["loss"] if isinstance(outputs, dict) else outputs)

    return Recorder()
