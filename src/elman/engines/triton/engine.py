"""Engine triton: programs spelled as Triton kernels, for a GPU or for Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from triton import knobs

from elman.engines.base import Engine, Job, Kernel
from elman.engines.triton.heads import HeadsKernel
from elman.engines.triton.kernel import DTYPES, TritonKernel
from elman.engines.triton.layout import padded
from elman.engines.triton.schedule import Schedule
from elman.errors import EngineError
from elman.ir.graph import Node
from elman.plan.build import program
from elman.plan.cost import item_bytes, phase_nodes
from elman.plan.prices import Prices
from elman.plan.program import Phase, Program

PRICES = Prices()
RESERVE = 16 << 10  # (bytes) of shared memory for what else a program needs
ON_CHIP = (227 << 10) - RESERVE  # (bytes) of weights that one program can hold, on an H100
PROCESSORS = 132  # of an H100


class TritonEngine(Engine):
    """Generated Triton on CUDA and ROCm devices."""

    name = "triton"
    derives = packs = True

    def __init__(self) -> None:
        self._programs: WeakKeyDictionary[Job, Program] = WeakKeyDictionary()

    def supports(self, job: Job) -> str | None:
        """A GPU (or the interpreter, with TRITON_INTERPRET=1); float32, bfloat16, float16."""
        if job.spec.device != "cuda" and not (job.spec.device == "cpu" and knobs.runtime.interpret):
            return f"it needs a GPU, and this is {job.spec.device}"
        if job.spec.dtype not in DTYPES:
            return f"it has no {job.spec.dtype}; it has {', '.join(DTYPES)}"
        return None

    def hopeless(self, job: Job, steps: int, batch: int) -> str | None:
        """The interpreter is for tests."""
        return None if job.spec.device == "cuda" else "it is interpreted: not measured"

    def schedules(self, job: Job, steps: int, batch: int) -> tuple[str, ...]:
        """What the model of shared memory does not rule out; at last step by step.

        All steps in one kernel where one program holds the weights; else units cut over so many
        programs that it does, all of them resident at once.
        """
        of = self._program(job.single or job)
        found: list[Schedule] = []
        room = _room()
        if resident_bytes(of) <= room:
            samples = 8 if batch <= 8 and not torch.version.hip else 16
            pairs = [(warps, stages) for warps in (4, 8) for stages in (1, 2)]
            found += [Schedule("loop", samples, warps, stages) for warps, stages in pairs]
        if job.single is not None:  # heads are programs of their own, or steps
            return tuple(schedule.name for schedule in (*found, Schedule("steps")))
        largest = max(_units(of), default=1)
        for own in (16, 32) if torch.version.hip else (8, 16, 32):
            share = -(-largest // own)
            for samples in (16, 32, 64):
                groups = -(-batch // samples)
                operand = samples * padded(largest) * item_bytes(of.spec)
                needs = resident_bytes(of) * padded_share(own, largest) + operand
                if share > 1 and share * groups <= _programs() and needs <= room:
                    found.append(Schedule("grid", samples, 8, 1, own))
                    break
        return tuple(schedule.name for schedule in (*found, Schedule("steps")))

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Plan and spell; Triton compiles at the first call."""
        reason = self.supports(job)
        if reason is not None:
            raise EngineError(f"engine 'triton' cannot run {job.name}: {reason}")
        chosen = Schedule.parse(schedule or self.schedules(job, 1, 1)[0])
        if job.single is not None and chosen.kind == "loop":
            return HeadsKernel(job, self._program(job.single), chosen)
        return TritonKernel(job, self._program(job), chosen)

    def _program(self, job: Job) -> Program:
        made = self._programs.get(job)
        if made is None:
            made = self._programs[job] = program(job.pair, job.spec, PRICES)
        return made


def padded_share(own: int, size: int) -> float:
    """What one program of a grid holds of all weights."""
    return own / padded(size)


def _units(of: Program) -> list[int]:
    """Sizes of the states."""
    sizes = of.spec.sizes
    atoms = [leaf.shape[0][0] for leaf in of.pair.step.states if leaf.shape]
    return [atom if isinstance(atom, int) else sizes[atom] for atom in atoms]


def _chip() -> Any:
    """What torch tells of the GPU at hand; None where there is none, and kernels are only made."""
    return torch.cuda.get_device_properties("cuda") if torch.cuda.is_available() else None


def _room() -> int:
    """Shared memory for weights of one program (bytes)."""
    most: int = getattr(_chip(), "shared_memory_per_block_optin", ON_CHIP + RESERVE)
    return most - RESERVE


def _programs() -> int:
    """Programs that are resident at once, one per processor."""
    count: int = getattr(_chip(), "multi_processor_count", PROCESSORS)
    return count


def resident_bytes(of: Program) -> int:
    """What the larger of both directions holds in one program: weights, as they are padded."""
    phases = [of.forward.step, *([of.backward.step] if of.backward is not None else [])]
    return max(_held(phase, of) for phase in phases)


def _held(phase: Phase, of: Program) -> int:
    sizes = of.spec.sizes

    def units(matrix: Node) -> Sequence[int]:
        atoms = [dim[0] for dim in matrix.shape]
        return [padded(atom if isinstance(atom, int) else sizes[atom]) for atom in atoms]

    found = {node.args[0] for node in phase_nodes(phase) if node.op == "matmul"}
    return sum(rows * columns for rows, columns in map(units, found)) * item_bytes(of.spec)


ENGINE = TritonEngine()
