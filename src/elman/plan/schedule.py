"""Schedules: how a program is distributed over cores; chosen by the tuner."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

from elman.errors import EngineError

Split = Literal["one", "batch", "units"]
SPLITS: tuple[Split, ...] = ("one", "batch", "units")
CHUNK_ROWS = 768  # of T·B between two batched products, if nothing else is said


@dataclass(frozen=True)
class Blocks:
    """The choices that are compiled into a text, the same for all sizes; schedules name those that
    are not as here.

    Attributes:
        rows: of the buffer that a product fills before pointwise code reads it. Blocks of 24 to 96
            rows lie within 6 % at large sizes.
        k: how much of the inner dim is used before the next rows are taken. 128 to 512: within 6 %.
        batched_rows: a batched phase is split by rows where every worker gets as many, else by
            units.
        copied_lefts: units of left operands from which on a sum copies its right one into panels.
        gathered_columns: of a product at least, for its operand to be looked through for ones,
            which takes as long as some three columns do.
        gathered_inner, gathered_most: units of such an operand, at least and at most: its list of
            ones is on the stack.
        gathered_steps: of a call at least, which looks its matrices through for infinities once.
        conflicting_row: rows that are multiples of so many elements fall into the same few sets of
            a cache, and are made longer.
        rolled_statements: that a loop over like parts, as those of heads, has to save. The C of a
            GRU with 16 heads is compiled in a third of the time.
        replayed_bytes: of matrices per sample in the steps of one chunk, which a backward computes
            again and which should stay in the second cache.
    """

    rows: int = 48
    k: int = 256
    batched_rows: int = 16
    copied_lefts: int = 512
    gathered_columns: int = 256
    gathered_inner: int = 64
    gathered_most: int = 4096
    gathered_steps: int = 16
    conflicting_row: int = 256
    rolled_statements: int = 96
    replayed_bytes: int = 1 << 19

    @property
    def name(self) -> str:
        """``/rows-32/k-128``: what is not as usual, at the end of a schedule's name."""
        values = [(field, getattr(self, field.name)) for field in fields(self)]
        return "".join(f"/{of.name}-{value}" for of, value in values if value != of.default)

    def replayed_steps(self, matrix_bytes: int) -> int | None:
        """Steps of a chunk for states of so many bytes per sample; None if there are none."""
        return max(16, min(64, self.replayed_bytes // matrix_bytes)) if matrix_bytes else None


USUAL_BLOCKS = Blocks()


@dataclass(frozen=True)
class Bound:
    """A division of one call: every field is a number that the kernel takes at run time.

    Attributes:
        split: index into ``SPLITS``: who takes part in a step, and how it is divided.
        workers: threads.
        chunk: time steps between two batched phases.
    """

    split: int
    workers: int
    chunk: int


@dataclass(frozen=True)
class Division:
    """The division of a call over workers and into chunks of time, for any T and B.

    Attributes:
        split: ``one`` worker runs the time loop; a share of the ``batch`` each; of the ``units``
            each, with a barrier per segment that reads what others wrote (weights then stay in the
            caches of the core that owns them over all steps).
        chunk_rows: rows of T·B between two batched phases; 0: as suits the program.
        min_chunks: chunks that a sequence is cut into at least, for a call that others follow.
    """

    split: Split
    chunk_rows: int = 0
    min_chunks: int = 1

    @property
    def name(self) -> str:
        """``units``, or ``units/384`` with other chunks than usual."""
        return f"{self.split}{f'/{self.chunk_rows}' if self.chunk_rows else ''}"

    def bind(
        self, T: int, B: int, workers: int, usual: int = CHUNK_ROWS, steps: int | None = None
    ) -> Bound:
        """The division for given sizes; a batch smaller than the number of workers is not split.

        Where the division names no rows of a chunk it has ``usual`` ones, or so many ``steps``.
        """
        rows = (self.chunk_rows or usual) // max(B, 1)
        if steps is not None and not self.chunk_rows:
            rows = steps
        chunk = max(1, min(-(-T // self.min_chunks), rows))
        alone = workers == 1 or (self.split == "batch" and workers > B)
        return Bound(0 if alone else SPLITS.index(self.split), workers, chunk)


@dataclass(frozen=True)
class Schedule:
    """One way to run a program: what is compiled, and how its calls are divided.

    Attributes:
        division: of every call; None: as forecast.
        blocks: compiled into the text of its kernels.
        steps: that are merged into one.
    """

    division: Division | None = None
    blocks: Blocks = USUAL_BLOCKS
    steps: int = 1

    @property
    def name(self) -> str:
        """``units/384``; ``4-steps/batch``; ``units/k-128`` with other blocks than usual."""
        steps = f"{self.steps}-steps/" if self.steps > 1 else ""
        return f"{steps}{self.division.name if self.division else ''}{self.blocks.name}"

    @staticmethod
    def parse(name: str) -> Schedule:
        """The schedule of a name. Raises EngineError for a text that is none."""
        options = "|".join(field.name for field in fields(Blocks))
        parts = rf"(?:([2-9])-steps/)?(\w+)(?:/0*([1-9]\d*))?((?:/(?:{options})-0*[1-9]\d*)*)"
        form = re.fullmatch(parts, name)
        for split in SPLITS:
            if form is not None and form[2] == split:
                chosen = [option.split("-") for option in form[4].split("/")[1:]]
                blocks = Blocks(**{option: int(value) for option, value in chosen})
                return Schedule(Division(split, int(form[3] or 0)), blocks, int(form[1] or 1))
        raise EngineError(
            f"no schedule {name!r}; there are {', '.join(SPLITS)}, each with the rows of a chunk"
            " behind it if need be, units/384, or with steps that are merged, 4-steps/batch, or"
            " with other blocks than usual, units/k-128"
        )
