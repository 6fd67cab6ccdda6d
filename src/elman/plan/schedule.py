"""Schedules: how a program is distributed over cores; chosen by the tuner."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

from elman.errors import EngineError

Split = Literal["one", "batch", "units"]
SPLITS: tuple[Split, ...] = ("one", "batch", "units")
# of T·B between two batched products by default; 192 to 1536 lie within 5 % at large sizes
CHUNK_ROWS = 768


@dataclass(frozen=True)
class Blocks:
    """Constants that are compiled into a kernel, the same for all sizes; a schedule's name has
    those that differ from the defaults.

    Attributes:
        rows: rows of the buffer that a product fills before pointwise code reads it: a buffer of 48
            stays in the first cache. Blocks of 24 to 96 rows lie within 6 % at large sizes.
        k: length along the inner dim of one pass over a block of rows. 128 to 512: within 6 %.
        batched_rows: a batched phase is split by rows if every worker gets at least so many, else
            by units.
        copied_lefts: a sum copies its right operand into panels if at least so many units of left
            operands multiply it; fewer do not pay for the copy.
        gathered_columns: a product of fewer columns never scans its operand for ones, because the
            scan takes as long as some three columns.
        gathered_inner, gathered_most: fewest and most units of an operand that is scanned: its
            list of ones is on the stack.
        gathered_steps: a call of fewer steps never scans: each call scans its matrices for
            infinities first.
        conflicting_row: rows of a multiple of so many elements fall into the same few sets of a
            cache, so they are padded.
        rolled_statements: statements that a loop over equal parts, such as heads, has to save. The
            C of a GRU with 16 heads is compiled in a third of the time.
        replayed_bytes: matrices per sample of one chunk, which a backward recomputes and which
            should stay in the second cache. Twice as many, the whole of that cache, took 12 or 19
            cycles a vector, by chance of the pages.
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
        """``/rows-32/k-128``: the fields that differ from the defaults, for a schedule's name."""
        values = [(field, getattr(self, field.name)) for field in fields(self)]
        return "".join(f"/{of.name}-{value}" for of, value in values if value != of.default)

    def replayed_steps(self, matrix_bytes: int) -> int | None:
        """Steps of a chunk for matrix states of ``matrix_bytes`` per sample; None without any."""
        return max(16, min(64, self.replayed_bytes // matrix_bytes)) if matrix_bytes else None


USUAL_BLOCKS = Blocks()


@dataclass(frozen=True)
class Bound:
    """A division of one call: every field is a number that the kernel takes at run time.

    Attributes:
        split: index into ``SPLITS``: how a step is divided among workers.
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
        split: ``one`` worker runs the time loop; or each worker has a share of the ``batch``; or of
            the ``units``, with a barrier before each segment that reads other workers' results
            (weights then stay in the caches of the core that owns them over all steps).
        chunk_rows: rows of T·B between two batched phases; 0: those of :func:`usual_rows`.
        min_chunks: fewest chunks of a sequence, for a call whose outputs the next kernel waits for.
    """

    split: Split
    chunk_rows: int = 0
    min_chunks: int = 1

    @property
    def name(self) -> str:
        """``units``, or ``units/384`` if the rows of a chunk are given."""
        return f"{self.split}{f'/{self.chunk_rows}' if self.chunk_rows else ''}"

    def bind(
        self, T: int, B: int, workers: int, usual: int = CHUNK_ROWS, steps: int | None = None
    ) -> Bound:
        """The division for given sizes; a batch smaller than the number of workers is not split.

        Without ``chunk_rows`` a chunk has ``usual`` rows, or ``steps`` steps if given.
        """
        rows = (self.chunk_rows or usual) // max(B, 1)
        if steps is not None and not self.chunk_rows:
            rows = steps
        chunk = max(1, min(-(-T // self.min_chunks), rows))
        alone = workers == 1 or (self.split == "batch" and workers > B)  # each needs a sample
        return Bound(0 if alone else SPLITS.index(self.split), workers, chunk)


@dataclass(frozen=True)
class Schedule:
    """One way to run a program: what is compiled, and how its calls are divided.

    Attributes:
        division: division of every call; None: the best forecast.
        blocks: constants compiled into its kernels.
        steps: number of steps that are merged into one.
    """

    division: Division | None = None
    blocks: Blocks = USUAL_BLOCKS
    steps: int = 1

    @property
    def name(self) -> str:
        """``units/384``; ``4-steps/batch``; ``units/k-128`` if blocks differ from the defaults."""
        steps = f"{self.steps}-steps/" if self.steps > 1 else ""
        return f"{steps}{self.division.name if self.division else ''}{self.blocks.name}"

    @staticmethod
    def parse(name: str) -> Schedule:
        """The schedule of a name. Raises EngineError for a text that names none."""
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
