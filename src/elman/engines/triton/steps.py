"""All steps one by one: products and kernels of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from elman.engines.packed import Packed
from elman.engines.triton.batched_phase import BatchedPhase
from elman.engines.triton.launch import Arrays, fresh


@dataclass(frozen=True, eq=False)
class StepArrays:
    """Arrays of the steps of one direction.

    Attributes:
        T, B: steps and samples.
        vec, weights: of weight rate.
        rows: arrays [.., T·B, n] that are read, or written, a step's rows at a time.
        sequences: of the states [.., T + 1, B, n], or [.., 2, B, n] where they are not kept, and
            [.., 1, B, n] where they only hold a value.
        carries: ``ca`` and ``cn`` [.., B, n], which change places after each step; or none.
        packed: how packed rows lie; sequences that are kept are [.., 1, B + N, n] then.
    """

    T: int
    B: int
    vec: Tensor
    weights: Sequence[Tensor]
    rows: Arrays
    sequences: Sequence[Tensor]
    carries: Arrays
    packed: Packed | None = None

    def at(self, t: int) -> tuple[int, int]:
        """The first row of a step, and how many it has."""
        if self.packed is None:
            return t * self.B, self.B
        return self.packed.offsets[t], self.packed.sizes[t]

    def states(self, sequence: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """A state [.., rows, n] before and after a step; where it is not kept, two alternate."""
        _, size = self.at(t)
        if self.packed is not None and sequence.shape[-2] > self.B:
            first = 0 if not t else self.B + self.at(t - 1)[0]
            flat = sequence.select(-3, 0)
            return flat.narrow(-2, first, size), flat.narrow(-2, self.B + self.at(t)[0], size)
        count = sequence.shape[-3]
        before, after = sequence.select(-3, t % count), sequence.select(-3, (t + 1) % count)
        return before.narrow(-2, 0, size), after.narrow(-2, 0, size)


class Steps:
    """Runs a phase for one step after another.

    Args:
        runner: of the phase.
        forward: in which order.
        wide: whether states go from step to step in float32, beside the sequences that are kept.
    """

    def __init__(self, runner: BatchedPhase, *, forward: bool, wide: bool) -> None:
        self.runner, self.forward, self.wide = runner, forward, wide

    def run(self, work: StepArrays) -> Tensor | None:
        """Run all steps; what is carried at the end, if anything is."""
        runner, B = self.runner, work.B
        heads = work.vec.shape[:-1]
        workspace = {
            "sr": fresh(work.vec, *heads, B, max(1, runner.scratch[1])),
            "sc": fresh(work.vec, *heads, B, max(1, runner.scalars)),
        }
        starts = [s[..., :1, :B, :] for s in work.sequences]
        wide = [start.float().expand(*heads, 2, -1, -1).clone() for start in starts]
        carries = work.carries
        for t in range(work.T) if self.forward else reversed(range(work.T)):
            first, size = work.at(t)
            now = {name: a.narrow(-2, first, size) for name, a in work.rows.items()}
            now |= {
                name: a.narrow(-2, 0, size) for name, a in (*workspace.items(), *carries.items())
            }
            for k, sequence in enumerate(work.sequences):
                before, after = work.states(sequence, t)
                now |= {f"st{k}": before, f"nx{k}": after}
                if self.wide:
                    now |= {f"sp{k}": before, f"sq{k}": after}
                    wide_before, wide_after = work.states(wide[k], t)
                    now |= {f"st{k}": wide_before, f"nx{k}": wide_after}
            runner.run(now, work.weights, work.vec, size)
            if carries:
                carries = {"ca": carries["cn"], "cn": carries["ca"]}
        return carries.get("ca")
