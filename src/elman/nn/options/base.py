"""Options of a call: an argument of ``forward`` that changes the cell's step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.checks import check_choice
from elman.engines.call import Call
from elman.errors import InputError, ShapeError
from elman.ir.graph import Graph, Node, node
from elman.ir.types import SCALAR, Shape
from elman.nn.layout.dense import as_tensor, check_dense
from elman.nn.layout.layout import Layout
from elman.nn.layout.packing import Rows
from elman.nn.options.bound import BoundCall, Facts, StepValues
from elman.tuning.request import Rule

RULES: dict[str, Rule] = {}  # by their names in records
# types that hold half a key, 24 bits; bfloat16 and float16 do not
_DRAWS = torch.int32, torch.int64, torch.float32, torch.float64
SomeRule = TypeVar("SomeRule", bound=Rule)


class StepOption(ABC):
    """An option of a call that changes the cell's step: its argument has a value for each step.

    A rule rewrites the step: forward, backward, every engine and every derivative follow from it.

    Attributes:
        name: of the argument.
        companion: a further argument that modifies the option: its name, its choices, and an
            example of a call.
    """

    name: ClassVar[str]
    companion: ClassVar[tuple[str, Sequence[str], str]] = ("", (), "")

    def check(self, options: Mapping[str, Any]) -> None:
        """Check the option's companion.

        Raises:
            InputError: it has another value than its choices, or is passed without the option.
        """
        name, choices, example = self.companion
        value = options.get(name)
        if value is None:
            return
        check_choice(name, value, choices)
        if self.name not in options:
            message = f"{name}={value!r} has no effect without {self.name}="
            raise InputError(message, example.replace("…", repr(value)))

    def sizes(self, runtime: Facts, training: bool) -> tuple[int, ...]:
        """Sizes of a step's value.

        Args:
            runtime: of the module.
            training: whether it trains.

        Raises:
            InputError: the module has no use for this option.
        """
        return ()

    @abstractmethod
    def enter(self, value: Tensor, call: BoundCall) -> None:
        """Apply the option to a call.

        Args:
            value: the argument in the inner layout, [T, B, *sizes] or [N, *sizes].
            call: the call, which is changed in place.
        """

    @abstractmethod
    def rule(self, facts: Sequence[str]) -> Rule:
        """The rule that changes the step."""

    @abstractmethod
    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        """The call of one layer in one direction, with the option's inputs last.

        Args:
            values: of the call.
            call: the call without this option; its first input may have another width.
            reverse: whether the direction runs from the last step to the first; further inputs are
                then in its order of time.
            member: index among the layers and directions that run together.
        """

    def for_layers(
        self, values: StepValues, first: int, end: int, draws: Sequence[str]
    ) -> StepValues | None:
        """The values of some layers and directions; None if the option does not concern them.

        Args:
            values: of all layers and directions.
            first, end: range of layers and directions.
            draws: periods of their cells' draws, see :func:`elman.passes.draws.draws`.
        """
        return values

    def pack(self, values: StepValues, rows: Rows) -> StepValues:
        """Values [T, B, ...] in the layout of packed rows."""
        return values._replace(tensors=tuple([rows.pack(value) for value in values.tensors]))


def register_rule(rule: SomeRule) -> SomeRule:
    """Let records name a rule."""
    RULES[rule.name] = rule
    return rule


def at_steps(value: Tensor, call: Call, axis: int = 0) -> Tensor:
    """A value of each sequence (along ``axis``) repeated at every step: [..., T, B, ...]; packed
    [..., N, ...]."""
    if call.packed is not None:
        return value.index_select(axis, call.packed.sequence.to(value.device))
    shape = value.shape
    return value.unsqueeze(axis).expand(*shape[:axis], call.sizes[0], *shape[axis:])


def further_leaf(graph: Graph, op: str, name: str, shape: Shape = SCALAR) -> Node:
    """A leaf that a rule adds, under a name that no leaf of the step has.

    Args:
        graph: the step before.
        op: ``input`` or ``weight``.
        name: its name, if no other leaf has it.
        shape: of its value.
    """
    leaf_names = {leaf.name for leaf in graph.leaves}
    while name in leaf_names:
        name += "_"
    return node(op, (), (name,), shape)


def check_step_values(name: str, values: Any, x: Any, layout: Layout, sizes: Sequence[int]) -> None:
    """Check an argument that has the layout of x.

    Args:
        name: of the argument.
        values: the argument: [T, B, *sizes]; [B, T, ..] with ``batch_first``; [T, ..] unbatched;
            packed if x is.
        x: the first input, in the caller's layout.
        layout: of x.
        sizes: sizes of further axes, which draws have.

    Raises:
        InputError, ShapeError: it is not a tensor of this layout, or packed unlike x.
    """
    if layout.packed:
        if not isinstance(values, PackedSequence):
            raise InputError(f"{name} is packed as x is: pack_padded_sequence({name}, lengths)")
        if not torch.equal(values.batch_sizes, x.batch_sizes):
            raise ShapeError(f"{name} is packed with other lengths than x")
        if sizes and values.data.shape[1:] != tuple(sizes):
            message = f"packed {name} must be [N, {_axes(sizes)}] = "
            message += f"{[len(values.data), *sizes]}, got {[*values.data.shape]}"
            raise ShapeError(message)
        _check_place(name, values.data, x.data, sizes)
        return
    _check_tensor(name, values, "step", sizes)
    shape = [*x.shape[: 1 + layout.batched]]
    if [*values.shape] != [*shape, *sizes]:
        names = "T" if not layout.batched else "B, T" if layout.batch_first else "T, B"
        names += f", {_axes(sizes)}" if sizes else ""
        message = f"{name} must be [{names}] = {[*shape, *sizes]}, got {[*values.shape]}"
        raise ShapeError(message, _hint(name, values, shape, sizes))
    _check_place(name, values, x, sizes)


def check_sample_values(
    name: str, values: Any, shape: Sequence[int], sizes: Sequence[int] = ()
) -> None:
    """Check one value for each sample of a single step.

    Args:
        name: of the argument.
        values: the argument.
        shape: [B]; [] unbatched.
        sizes: see :func:`check_step_values`.

    Raises:
        InputError, ShapeError: it is not a tensor, or of another shape.
    """
    _check_tensor(name, values, "sample", sizes)
    if [*values.shape] != [*shape, *sizes]:
        shape_text = f"[{'B, ' * len(shape)}{_axes(sizes)}]" if sizes else "one flag per sample"
        message = f"{name} must be {[*shape, *sizes]}, {shape_text}, got {[*values.shape]}"
        raise ShapeError(message, _hint(name, values, shape, sizes))


def _axes(sizes: Sequence[int]) -> str:
    """Names of the axes of draws after those of x."""
    return "heads, " * (len(sizes) > 2) + "layers·directions, n"


def _check_tensor(name: str, values: Any, per: str, sizes: Sequence[int]) -> None:
    if not isinstance(values, Tensor):
        shape_text = "as net.draws(T, B) returns it" if sizes else f"one flag per {per}"
        message = f"{name} must be a tensor, {shape_text}, got {type(values).__name__}"
        hint = f"torch.stack({name})" if sizes and type(values) is list else as_tensor(values, name)
        raise InputError(message, hint)
    check_dense(values, name)


def _check_place(name: str, values: Tensor, like: Tensor, sizes: Sequence[int]) -> None:
    """Check that values are on the device of x and can be compared with 0, and that draws have all
    bits.

    Raises:
        InputError: they are on another device, or have another type.
    """
    if values.device != like.device:
        message = f"{name} is on {values.device}, but x is on {like.device}"
        raise InputError(message, f"{name}.to({str(like.device)!r})")
    if values.is_complex():
        message = f"{name} must be bool or real numbers, got {values.dtype}"
        raise InputError(message, f"{name} != 0")
    if sizes and values.dtype not in _DRAWS:
        message = f"{name} must be whole numbers of 24 bits, as int32, got {values.dtype}"
        raise InputError(message, "keep what net.draws(T, B) returns as it is")


def _hint(name: str, values: Tensor, shape: Sequence[int], sizes: Sequence[int]) -> str:
    """A reshape that would make values fit, or nothing."""
    if sizes:
        swapped = len(shape) == 2 and [*values.shape] == [*shape[::-1], *sizes]
        return f"{name}.transpose(0, 1)" if swapped else ""
    if [*values.shape] == [*shape, 1]:
        return f"{name}.squeeze(-1)"
    if [*values.shape] == [*shape[::-1]]:
        return f"{name}.T"
    return ""
