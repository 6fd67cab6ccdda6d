"""Tape of a step: torch's operations, recorded in order while the step runs once.

The batch has a prime number of samples while a step is recorded, one that no size of the program
has, so the axis of samples is the one whose size is a multiple of it, through every view. (Tensors
without memory would do as well, but torch imports its compiler for their shapes, some seconds.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.errors import StepError
from elman.torch_internals import memory_of, name_of, pytree, schema_of

BATCHES = (101, 37)  # the second where the first is a size of the program
OWN_GRADIENT = "torch.autograd.Function"


class Ref(NamedTuple):
    """A tensor of the tape: its number, one per value that it has had."""

    number: int


class Place(NamedTuple):
    """Where a tensor's axis of samples is, and its shape of one sample.

    Attributes:
        shape: with the axis of samples as its rows per sample.
        batch: that axis; None: there is none.
    """

    shape: tuple[int, ...]
    batch: int | None

    def apart(self, value: Tensor, lead: int = 0) -> Tensor:
        """A tensor [*lead, ..] as [*lead, B, *shape]; without samples it is of one."""
        if self.batch is None:
            return value.unsqueeze(lead)
        axis = lead + self.batch
        value = value.unflatten(axis, (-1, self.shape[self.batch]))
        return value.movedim(axis, lead) if self.batch else value

    def join(self, value: Tensor, lead: int = 0) -> Tensor:
        """The reverse of :meth:`apart`; without samples, all are alike, and the first is taken."""
        if self.batch is None:
            return value.select(lead, 0)
        axis = lead + self.batch
        value = value.movedim(lead, axis) if self.batch else value
        return value.flatten(axis, axis + 1)


def is_ref(value: Any) -> bool:
    """Whether a leaf of arguments or results is a reference."""
    return isinstance(value, Ref)


def refs_of(tree: Any) -> list[Ref]:
    """All references in arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(tree, is_leaf=is_ref) if isinstance(leaf, Ref)]


class Entry(NamedTuple):
    """One operation.

    Attributes:
        op: of torch; ``OWN_GRADIENT`` of a value, inputs and slopes.
        args, kwargs: with a :class:`Ref` in place of each tensor.
        results: what it returns, with references; of what it writes to, the new value.
        where: the user's line.
        stops: whether torch.no_grad() surrounds it.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    where: str
    stops: bool

    @property
    def name(self) -> str:
        """See :func:`name_of`."""
        return name_of(self.op)

    @property
    def given(self) -> list[Ref]:
        """The tensors that it is given."""
        return refs_of((self.args, self.kwargs))


def written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Those leaves of an operation's arguments that it writes to."""
    if isinstance(op, str) or not schema_of(op).is_mutable:
        return []
    values: list[Any] = []
    for at, argument in enumerate(schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            values.append(args[at] if at < len(args) else kwargs.get(argument.name))
    leaves = pytree.tree_leaves(values, is_leaf=is_ref)
    return [leaf for leaf in leaves if isinstance(leaf, (Tensor, Ref))]


def is_random(op: Any) -> bool:
    """Whether an operation draws numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


@dataclass
class Tape:
    """A recorded step.

    Attributes:
        entries: in their order.
        batch: samples while it was recorded.
        tensors: by number of reference; kinds and sizes alone, once it is read.
        carries, inputs: references of the leaves of states and of inputs that the step was given.
        captured: tensors that the step closes over, by number of reference.
        per_sample: those of them that have a row for each sample.
        constants: tensors that the step makes of numbers alone.
        places: captured tensors that are indices, whose numbers are part of the formula.
        read: captured tensors a number of which the step reads, and the number.
        results: leaves of what it returns: references, or what is no tensor.
        spec: of the tree of results.
    """

    batch: int = BATCHES[0]
    entries: list[Entry] = field(default_factory=list[Entry])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    carries: list[Ref] = field(default_factory=list[Ref])
    inputs: list[Ref] = field(default_factory=list[Ref])
    captured: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    per_sample: set[int] = field(default_factory=set[int])
    places: set[int] = field(default_factory=set[int])
    constants: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    read: list[tuple[Tensor, Any]] = field(default_factory=list[tuple[Tensor, Any]])
    results: list[Any] = field(default_factory=list[Any])
    spec: Any = None

    def kind(self, ref: Ref) -> torch.dtype:
        """The type of a value."""
        return self.tensors[ref.number].dtype

    def place(self, ref: Ref) -> Place:
        """Where a value's axis of samples is. Raises StepError: it has two."""
        shape = self.tensors[ref.number].shape
        axes = [axis for axis, n in enumerate(shape) if n and n % self.batch == 0]
        if len(axes) > 1:
            raise StepError("a tensor has two axes of samples")
        sizes = [n // self.batch if axis in axes else n for axis, n in enumerate(shape)]
        return Place(tuple(sizes), axes[0] if axes else None)

    def needed(self, entries: Sequence[int], wanted: Iterable[Ref]) -> list[int]:
        """Those entries, by number, that some values depend on, and those that write to what the
        step closes over."""
        refs, kept = {*wanted}, list[int]()
        for at in reversed(entries):
            entry = self.entries[at]
            if refs.intersection(refs_of(entry.results)) or self.writes_outside(entry):
                kept.append(at)
                refs.update(entry.given)
        return kept[::-1]

    def writes_outside(self, entry: Entry) -> bool:
        """Whether an operation writes to a tensor that the step closes over."""
        leaves = written_by(entry.op, entry.args, entry.kwargs)
        written = {memory_of(self.tensors[ref.number]) for ref in leaves}
        captured = self.captured if written else ()
        return any(memory_of(self.tensors[number]) in written for number in captured)

    def sized(self, value: Any, batch: Callable[[int], Any]) -> Any:
        """A number of an operation's arguments; of samples, what ``batch`` makes of how many times
        the batch it is."""
        is_batch = type(value) is int and value and value % self.batch == 0
        return batch(value // self.batch) if is_batch else value

    def same_as(self, other: Tape) -> bool:
        """Whether two tapes are of one formula: the same operations of the same values."""
        return (
            self._plain() == other._plain()
            and self.constants.keys() == other.constants.keys()
            and all(
                value.dtype == other.constants[number].dtype
                and torch.equal(value, other.constants[number])
                for number, value in self.constants.items()
            )
        )

    def forget(self) -> None:
        """Let go of all tensors but constants and indices: others take no memory from now on."""
        self.tensors = [torch.empty((), dtype=t.dtype).expand(t.shape) for t in self.tensors]
        kept = self.captured.items()
        self.captured = {n: t if n in self.places else self.tensors[n] for n, t in kept}
        self.read = []

    def _plain(self) -> Any:
        """All but tensors, with the batch as a name."""

        def number(value: Any) -> Any:
            return self.sized(value, "{}B".format)

        entries = [
            (entry.op, *pytree.tree_map(number, entry[1:4], is_leaf=lambda v: type(v) is Ref))
            for entry in self.entries
        ]
        kinds = [(tensor.dtype, [*map(number, tensor.shape)]) for tensor in self.tensors]
        return entries, self.results, self.spec, [*self.captured], self.per_sample, kinds
