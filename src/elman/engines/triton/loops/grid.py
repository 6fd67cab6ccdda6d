"""All steps in one kernel, units cut over programs that synchronise between segments.

Each program keeps the weights' rows of its own units on chip; states, and values that a segment
reads in full, go through memory. Programs that share samples are a group with a counter: a segment
that reads stores of others waits until all programs have arrived. Stores that no other program
waits for follow the arrival, so that they do not delay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elman.engines.triton.device import limits
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.device.source import indented
from elman.engines.triton.loops.loop import Loop, shape
from elman.engines.triton.text.layout import (
    KTile,
    TritonLayout,
    array_of,
    k_tiles,
    padded,
    power_of_2,
    tile_units,
)
from elman.lowered.lower import DirectionLowering
from elman.lowered.types import Access, Let, Phase, Product, Segment, Space, Store, Term, columns_of
from elman.plan.cost import item_bytes

_SHARED = (Space.SCRATCH, Space.CARRY)  # in memory if other programs read it


class Grid(Loop):
    """One direction's time loop, its units cut over ``programs``.

    Args:
        layout, schedule, lowering, phase, options: see :class:`Loop`.

    Attributes:
        programs: programs of a group.
        passes: runs of a step by the interpreter until every program has read all others' stores.
    """

    numbers = ("i0", "i1", "T", "B", "g0")
    heads_axis = 2
    steps = ("i0", "i1")

    def __init__(
        self,
        layout: TritonLayout,
        schedule: TritonSchedule,
        lowering: DirectionLowering,
        phase: Phase,
        **options: Any,
    ) -> None:
        super().__init__(layout, schedule, lowering, phase, **options)
        self.splits = schedule.warps  # parts of a product's inner dim, one per warp
        self.most = tile_units(schedule.samples, item_bytes(layout.program.spec))
        sizes = [layout.size(part.gate_block) for s in phase.segments for part in s.parts]
        self.programs = -(-max(sizes, default=1) // schedule.units)
        self.passes = 1 + sum(segment.sync for segment in phase.segments)
        self._late: list[str] = []  # stores that no other program waits for
        self._sums: set[int] = set()  # numbers of blocks that one reduction sums
        self._operands: dict[Access, dict[KTile, str]] = {}
        self._all_sizes: set[int] = set()
        # columns that all programs read
        self._read = {access for segment in phase.segments for access in _full_reads(segment)}
        self._read |= {after for before, after in self.carried if before in self._read}

    def _program_size(self, size: int) -> int:
        return -(-size // self.programs)

    def block_of(self, size: int) -> int:
        return max(limits.GRID_UNITS, power_of_2(self._program_size(size)))

    def masked(self, size: int) -> bool:
        return True

    def indices(self, name: str, size: int) -> list[str]:
        """See :meth:`Printer.indices`: the units of this program."""
        offsets, own = f"tl.arange(0, {self.block_of(size)})[:, None]", self._program_size(size)
        return [
            f"{name} = tl.program_id(0) * {own} + {offsets}",
            f"ok_{name} = ({offsets} < {own}) & ({name} < {size})",
        ]

    def column(self, access: Access, array: str) -> str:
        region = access.region
        if region.space not in _SHARED:
            return super().column(access, array)
        name = self.array("ca" if region.space is Space.CARRY else array)
        step = f"({self.time} + 1)" if access.step else self.time
        return f"{name} + (({step} & 1) * B + n) * {region.row} + {access.offset}"

    def _target(self, access: Access) -> str:
        """Where a value is stored. The interpreter repeats a step, so it has two arrays, with a
        program's values before and after it; on a GPU they are one."""
        twice = access.region.space in (Space.TAPE, Space.CHUNK)
        return self.column(access, f"{array_of(access)}{'now' if twice else ''}")

    def in_memory(self, access: Access) -> bool:
        """See :meth:`Loop.in_memory`; values that this program alone reads stay in registers."""
        if access.region.space in _SHARED:
            return access in self._read
        return super().in_memory(access)

    def store(self, access: Access, name: str) -> None:
        """See :meth:`Printer.store`; columns that others read are stored first."""
        self.at_hand[access] = name
        self._operands.pop(access, None)
        if self.in_memory(access):
            lines = self.lines if access in self._read else self._late
            lines.append(self.stored(self._target(access), access, name))

    def text(self) -> str:
        kernel = super().text()
        return "\n\n".join([*(_added(count) for count in sorted(self._sums)), kernel])

    def print_steps(self) -> None:
        """See :meth:`Loop.print_steps`: a segment that reads other programs' stores waits for them,
        and a program arrives as soon as it has stored the columns that others read."""
        segments = self.phase.segments
        self.at_hand = {before: f"h{k}" for k, (before, _) in enumerate(self.carried)}
        if not any(segment.sync for segment in segments):
            self.lines.append("tl.debug_barrier()")  # see Printer.order
        for segment, following in zip(segments, [*segments[1:], *segments[:1]], strict=True):
            if segment.sync:
                self.lines += ["if BARRIER:", "    lib.wait(bar_at, epoch)"]
            self.segment(segment)
            if following.sync:
                self.lines.append(f"epoch += {self.programs}")
                self.lines += ["if BARRIER:", "    lib.arrive(bar_at)"]
            self.lines += self._late
            self._late.clear()

    def samples(self, block: str = "(g0 + tl.program_id(1))") -> list[str]:
        return super().samples(block)

    def begin(self) -> list[str]:
        counter = f"bar_at = {self.array('bar')} + g0 + tl.program_id(1)"
        return [counter, "epoch = 0", *super().begin(), "tl.debug_barrier()"]  # see Printer.order

    # products, and units of other programs

    def _inner_of(self, tile: KTile) -> tuple[str, int]:
        """A tile's indices [splits, units of a split], and the number of splits."""
        splits = max(1, min(self.splits, tile.length // limits.GRID_INNER))
        each = tile.length // splits
        first = f"{tile.start} + tl.arange(0, {splits})[:, None] * {each}"
        return self.once(tile, "k", f"{first} + tl.arange(0, {each})[None, :]"), splits

    def _split_weight(self, term: Term, tile: KTile) -> str:
        """This program's rows of a matrix: [splits, units, units of a split]."""
        array, stride = self.matrix(term)
        units, k = self.units(shape(term)[0]), self._inner_of(tile)[0]
        inside = f"ok_{units}[None, :, :]"
        if tile.padded:
            inside += f" & ({k}[:, None, :] < {tile.size})"
        at = f"{array} + {units}[None, :, :] * {stride} + {k}[:, None, :]"
        load = f"tl.load({at}, mask={inside}, other=0.0).to(DT)"
        return self.once((term, tile), "w", load)

    def _split_operand(self, access: Access, tile: KTile) -> str:
        """A tile of all units: [splits, units of a split, samples]."""
        pieces = self._operands.setdefault(access, {})
        if tile not in pieces:
            k = self._inner_of(tile)[0]
            mask = f"{self.live}[None, :, :]"
            if tile.padded:
                mask = f"({k} < {tile.size})[:, :, None] & {mask}"
            at = f"({self._target(access)})[None, :, :] + {k}[:, :, None]"
            # .cg: past the first cache, which does not see other processors' stores
            load = f"tl.load({at}, mask={mask}, other=0.0, cache_modifier='.cg').to(DT)"
            pieces[tile] = self.define(load, "o")
        return pieces[tile]

    def product(self, product: Product) -> list[str]:
        """See :meth:`Printer.product`: parts of the inner dim on the warps, then the sums over the
        warps of all products in one reduction, which shares its barriers."""
        chains = [self._chains(product, acc) for acc in product.accs]
        flat = [name for chain in chains for name in chain]
        sums = {name: self.fresh("a") for name in flat}
        one_by_one = [f"{total} = tl.sum({name}, 0)" for name, total in sums.items()]
        if len(flat) == 1 or any(len(chain) > 1 for chain in chains):
            self.lines += one_by_one
        else:
            self._sums.add(len(flat))
            at_once = f"tl.reduce(({', '.join(flat)}), 0, added{len(flat)})"
            self.lines += ["if INTERPRETED:", *indented(one_by_one)]
            self.lines += ["else:", f"    {', '.join(sums.values())} = {at_once}"]
        return [self.define(" + ".join(sums[name] for name in chain), "a") for chain in chains]

    def _chains(self, product: Product, acc: tuple[Term, ...]) -> list[str]:
        """Blocks [splits, units, samples] whose sums are an accumulation."""
        units = self.block_of(self.layout.size(product.gate_block))
        chains: dict[int, str] = {}  # tiles with different numbers of splits are summed apart
        for term, operand in zip(acc, product.operands, strict=True):
            for tile in k_tiles(operand.units, self.most):
                splits = self._inner_of(tile)[1]
                weight, value = self._split_weight(term, tile), self._split_operand(operand, tile)
                start = chains.get(splits, f"tl.zeros([{splits}, {units}, N], tl.float32)")
                call = f"lib.dot({weight}, {value}, {start}, PRECISION, INTERPRETED)"
                chains[splits] = self.define(call, "a")
        return list(chains.values())

    def all_units(self, access: Access) -> tuple[str, str]:
        """See :meth:`Printer.all_units`; from memory, which has the other programs' units."""
        size = access.units
        units, mask = f"f{size}", f"ok_f{size}"
        if size not in self._all_sizes:
            self._all_sizes.add(size)
            self.before.append(f"{units} = tl.arange(0, {padded(size)})[:, None]")
            self.before.append(f"{mask} = {units} < {size}")
        if access.region.space is Space.VECTOR:
            load = (
                f"tl.load({self.array('vec')} + {access.offset} + {units}, mask={mask}, other=0.0)"
            )
            name = self.once((access, "all"), "g", load)
            return f"tl.broadcast_to({name}, [{padded(size)}, N])", mask
        load = f"tl.load({self._target(access)} + {units}, mask={mask} & {self.live}, other=0.0"
        return self.define(f"{load}, cache_modifier='.cg').to(tl.float32)", "g"), mask

    def program_units(self, all_units: str, size: int) -> str:
        return f"lib.units({all_units}, {self.units(size)})"


def _full_reads(segment: Segment) -> Iterator[Access]:
    """Columns of which a segment reads all units."""
    values = [store.value for store in segment.scalars]
    for part in segment.parts:
        values += [s.value for s in part.body if isinstance(s, Let | Store)]
        for product in part.products:
            yield from product.operands
    for value in values:
        yield from (access for access, whole in columns_of(value) if whole and not access.scalar)


def _added(count: int) -> str:
    """A function that adds ``count`` blocks to ``count`` others, one by one."""
    first, second = ([f"{letter}{k}" for k in range(count)] for letter in "ab")
    sums = [f"{a} + {b}" for a, b in zip(first, second, strict=True)]
    arguments = ", ".join([*first, *second])
    return f"@triton.jit\ndef added{count}({arguments}):\n    return {', '.join(sums)}\n"
