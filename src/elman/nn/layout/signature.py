"""The arguments of a module's call, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.ir.types import axes_of, shape_size
from elman.nn.layout.dense import TRAINED, as_tensor, check_dense
from elman.nn.layout.layout import Layout, Named, StateForm, as_number

ONE_SEQUENCE = "lengths= is for a batch of sequences: this input is a single one"


@dataclass(frozen=True)
class Signature:
    """Inputs, static inputs and states of a module: names, sizes and layout.

    Attributes:
        cell: name of the cell, for messages.
        inputs, static, states: (name, sizes without batch and time).
        lead: rows of each state: layers · directions, or 1 if layers have different states.
        form: layout of the states.
        takes: indices of the inputs, and of the static ones after them, that each layer and
            direction reads; the first is the output of the layer below for all but the lowest.
        matrices: rows and columns of inputs and states that are matrices, whose size here is K · V.
    """

    cell: str
    inputs: tuple[Named, ...]
    static: tuple[Named, ...]
    states: tuple[Named, ...]
    lead: int
    form: StateForm
    takes: tuple[tuple[int, ...], ...]
    matrices: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(layers: Mapping[str, tuple[Cell, dict[str, int]]]) -> Signature:
        """The signature of cells under bindings of their dims.

        Args:
            layers: by the suffix of each layer and direction. Layers share further inputs of the
                same name.
        """
        by_layer: list[list[tuple[Named, ...]]] = [
            [tuple([(entry.name, shape_size(entry.shape, dims)) for entry in group])
             for group in (cell.inputs, cell.static, cell.states)]
            for cell, dims in layers.values()
        ]  # fmt: skip
        first = by_layer[0][0][0]
        further = tuple(dict.fromkeys([value for entries, *_ in by_layer for value in entries[1:]]))
        static = tuple(dict.fromkeys([value for _, entries, _ in by_layer for value in entries]))
        takes = [
            (0, *[1 + further.index(value) for value in entries[1:]],
             *[1 + len(further) + static.index(value) for value in fixed])
            for entries, fixed, _ in by_layer
        ]  # fmt: skip
        form, states = StateForm.of([entries for *_, entries in by_layer]), by_layer[0][2]
        if not form.alike:
            states = tuple(
                [(f"{name}_{suffix}", sizes) for suffix, (*_, entries) in zip(layers, by_layer)
                 for name, sizes in entries]
            )  # fmt: skip
        names = "/".join(dict.fromkeys([cell.name for cell, _ in layers.values()]))
        lead = len(layers) if form.alike else 1
        axes = {
            name: axes_of(entry.shape[0][0], dims)
            for suffix, (cell, dims) in layers.items()
            for entry in (*cell.inputs, *cell.static, *cell.states)
            for name in (entry.name, f"{entry.name}_{suffix}")
            if entry.shape
        }
        matrices = {name: pair for name, pair in axes.items() if pair is not None}
        named = (first, *further), static, states
        return Signature(names, *named, lead, form, tuple(takes), matrices)

    def check(
        self,
        x: Any,
        state: Any,
        static: Any,
        like: Tensor | None,
        batch_first: bool,
        lengths: bool = False,
    ) -> Layout:
        """Check the arguments of a call.

        Args:
            x: the caller's input.
            state: the caller's state, or None for the default.
            static: the caller's inputs with one value per sequence.
            like: a weight, whose dtype and device the tensors must have.
            batch_first: whether x is [B, T, n].
            lengths: whether the caller passed lengths of a padded batch.

        Returns:
            Their layout.

        Raises:
            ShapeError, InputError: one of them does not fit the module.
        """
        layout, batch, first = self._check_inputs(x, like, batch_first, lengths)
        lead = (batch,) if layout.batched else ()
        if state is not None:
            self._check_states(state, lead, first)
        if static is not None or self.static:
            self._check_fixed(static, like, lead, first)
        return layout

    def number_type(self, x: Any, like: Tensor | None) -> torch.dtype:
        """The type of bool inputs as numbers: the weights', or that of an input."""
        if like is not None:
            return like.dtype
        values = [part.data if isinstance(part, PackedSequence) else part for part in parts_of(x)]
        dtypes = (value.dtype for value in values if value.dtype is not torch.bool)
        return next(dtypes, torch.get_default_dtype())

    def check_static(self) -> None:
        """Refuse static inputs of a module that has none. Raises InputError."""
        if not self.static:
            raise InputError(
                f"{self.cell} has no static inputs",
                "join it to the input of each step, or take a cell that declares static=, "
                "as elman.cells.ealstm",
            )

    def _check_inputs(
        self, x: Any, like: Tensor | None, batch_first: bool, lengths: bool
    ) -> tuple[Layout, int, Tensor]:
        """Check inputs. Returns their layout, B, and the first one, bools as numbers."""
        packed = self._is_packed(x)
        if packed and lengths:
            raise InputError("lengths= is for padded tensors: a PackedSequence has its own lengths")
        values = [part.data for part in parts_of(x)] if packed else x
        tensors = self._numbers(self._tensors(values, self.inputs, "input"), like)
        (name, sizes), first = self.inputs[0], tensors[0]
        if like is None and not (first.is_floating_point() or first.is_complex()):
            problem = f"{first.dtype}, and the formula computes with floating-point numbers"
            raise InputError(f"input {name} of {self.cell} is {problem}", f"{name}.float()")
        batched = packed or first.dim() == 2 + len(sizes)
        if lengths and first.dim() < 2 + len(sizes):
            raise ShapeError(ONE_SEQUENCE)
        layout = Layout(batched, batch_first and batched and not packed, packed)
        steps, batch = 1, 1
        if packed:
            numbers = parts_of(x)[0].batch_sizes
            steps, batch = int(numbers.sum()), int(numbers[0])
        for place, ((name, sizes), value) in enumerate(zip(self.inputs, tensors, strict=True)):
            self._check("input", name, value, like, first)
            if packed:
                self._check_shape(f"packed input {name}", value, (steps, *sizes))
                continue
            axes = 1 + batched
            if value.dim() != axes + len(sizes) or value.shape[axes:] != sizes:
                self._refuse_shape(name, sizes, value, batched, batch_first)
            rate = layout.time_major(value).shape[:2]
            if not place:
                steps, batch = rate
            if steps == 0:
                raise ShapeError(f"input {name} of {self.cell} has no steps: {[*first.shape]}")
            if rate != (steps, batch):
                raise ShapeError(
                    f"input {name} of {self.cell} has T, B = {rate[0]}, {rate[1]}, "
                    f"but {self.inputs[0][0]} has {steps}, {batch}"
                )
        return layout._replace(padded=lengths and batch > 0), batch, first

    def _is_packed(self, x: Any) -> bool:
        """Whether the inputs are packed sequences, of the same lengths."""
        tensors = parts_of(x)
        packed = [part for part in tensors if isinstance(part, PackedSequence)]
        if not packed:
            return False
        for part in packed[1:]:
            if not torch.equal(part.batch_sizes, packed[0].batch_sizes):
                raise ShapeError(f"the packed inputs of {self.cell} differ in their lengths")
        if len(packed) != len(tensors):
            raise InputError(f"either all inputs of {self.cell} are packed, or none")
        return True

    def _tensors(self, value: Any, declared: tuple[Any, ...], role: str) -> list[Tensor]:
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        for part in values:
            if not isinstance(part, Tensor):
                message = f"{role} of {self.cell} is a tensor, got {type(part).__name__}"
                is_number = isinstance(part, int | float) and role != "input"
                hint = f"torch.full([B], {part}), one number for each of B sequences"
                raise InputError(message, hint if is_number else as_tensor(part, "x"))
            check_dense(part, role, self.cell)
        if len(values) != len(declared):
            names = ", ".join(name for name, _ in declared)
            hint = f"({names})" if len(declared) > 1 else names
            message = (
                f"{self.cell} has {len(declared)} {role}{'s' * (len(declared) > 1)}, {hint}, "
                f"but {len(values)} {'was' if len(values) == 1 else 'were'} given"
            )
            calls = {"input": f"net({hint})", "state": f"net(x, {hint})"}
            call = calls.get(role, f"net(x, static={hint})")
            if role == "state" and self.static:
                fixed = ", ".join(name for name, _ in self.static)
                call += f"; net(x, static=…) for its static inputs: {fixed}"
            raise InputError(message, call)
        return values

    def _numbers(self, values: list[Tensor], like: Tensor | None) -> list[Tensor]:
        """Bools as numbers of the weights' type, 1 where true."""
        if all(value.dtype is not torch.bool for value in values):
            return values
        return [as_number(value, self.number_type(values, like)) for value in values]

    def _check(
        self, kind: str, name: str, value: Tensor, weight: Tensor | None, first: Tensor
    ) -> None:
        """Compare dtype and device with a weight's, or with the first input's if there is none."""
        like = first if weight is None else weight
        if value.dtype == like.dtype and value.device == like.device:
            return
        owner = f"input {self.inputs[0][0]} is" if weight is None else "its weights are"
        if value.device != like.device:
            problem, hint = f"on {value.device}, but {owner} on {like.device}", str(like.device)
            hint = f"{name}.to({hint!r})"
        else:
            problem, hint = f"{value.dtype}, but {owner} {like.dtype}", f"{name}.to({like.dtype})"
            hint = f"{name}.real" if value.is_complex() else hint
            hint += (
                f", or net.to({value.dtype})"
                if weight is not None and value.dtype in TRAINED
                else ""
            )
        raise InputError(f"{kind} {name} of {self.cell} is {problem}", hint)

    def _check_shape(
        self, subject: str, value: Tensor, shape: Sequence[int], suffix: str = ""
    ) -> None:
        if value.shape != tuple(shape):
            needed, given = self._shown(subject, shape), self._shown(subject, value.shape)
            raise ShapeError(f"{subject} of {self.cell} must be {needed}, got {given}{suffix}")

    def _shown(self, subject: str, shape: Sequence[int]) -> list[int]:
        """A shape in the caller's form: rows and columns of a matrix, whose name ends the subject,
        instead of their product."""
        axes = self.matrices.get(subject.rpartition(" ")[2])
        return [*shape[:-1], *axes] if axes and shape[-1] == axes[0] * axes[1] else [*shape]

    def _refuse_shape(
        self, name: str, sizes: tuple[int, ...], value: Tensor, batched: bool, batch_first: bool
    ) -> NoReturn:
        full = ["B", "T"] if batch_first else ["T", "B"]
        first = name == self.inputs[0][0] and not batched
        shapes = [full, ["T"]] if first else [full if batched else ["T"]]
        units = self._shown(name, sizes) if sizes else []
        texts = [f"[{', '.join(map(str, [*shape, *units]))}]" for shape in shapes]
        hint, heads = "", value.shape[2] if value.dim() == 3 + len(sizes) else 0
        if heads and value.shape[3:] == sizes:
            hint = f"heads={heads}, with sizes of all heads, for an axis of {heads} heads"
            hint = "without an axis of one head: .squeeze(2)" if heads == 1 else hint
        raise ShapeError(
            f"input {name} of {self.cell} must be {', or unbatched '.join(texts)}, "
            f"got {self._shown(name, value.shape)}",
            hint,
        )

    def _check_fixed(
        self, static: Any, like: Tensor | None, lead: tuple[int, ...], first: Tensor
    ) -> None:
        """Check static inputs [*lead, n].

        Raises:
            ShapeError, InputError: they are missing, or do not fit the module.
        """
        if static is None:
            names = ", ".join(name for name, _ in self.static)
            hint = "net(x, static=…): one value per sequence"
            raise InputError(f"{self.cell} has static inputs: {names}", hint)
        self.check_static()
        values = self._numbers(self._tensors(static, self.static, "static input"), like)
        for (name, sizes), value in zip(self.static, values, strict=True):
            self._check("static input", name, value, like, first)
            axes = ": batch, units" if sizes else ": batch"
            self._check_shape(f"static input {name}", value, (*lead, *sizes), axes if lead else "")

    def _check_states(self, state: Any, lead: tuple[int, ...], like: Tensor) -> None:
        """Check initial states [lead, B, n], or lists of [B, n] if layers have different states."""
        rank: tuple[int, ...] = (self.lead,) if self.form.alike else ()
        arrays = state if self.form.alike else self.form.flatten(state)
        if arrays is None:
            raise InputError(
                f"layers of {self.cell} have states of their own: state is a list of "
                f"{len(self.form.counts)}, one for each layer and direction",
                "out, state = net(x); net(x, state): a tensor [B, n] for each, a tuple where "
                "a cell has several",
                states=", ".join(name for name, _ in self.states),
            )
        values = self._numbers(self._tensors(arrays, self.states, "state"), like)
        for (name, sizes), value in zip(self.states, values, strict=True):
            expected = (*rank, *lead, *sizes)
            if value.shape != expected:
                units = ", rows, columns" if name in self.matrices else ", units"
                axes = f": layers · directions{', batch' * len(lead)}{units * bool(sizes)}"
                fewer = bool(rank) and value.dim() < len(expected)
                needed, given = self._shown(name, expected), self._shown(name, value.shape)
                raise ShapeError(
                    f"state {name} of {self.cell} must be {needed}, got {given}{axes * bool(rank)}",
                    _hint_of_state(value.shape == expected[1:]) if fewer else "",
                )
            self._check("state", name, value, None, like)


def _hint_of_state(lacks_layers: bool) -> str:
    return (
        "state.unsqueeze(0): the first axis is layers · directions"
        if lacks_layers
        else "lengths=…, reset=…, mask=… are given by name"
    )


def parts_of(x: Any) -> Sequence[Any]:
    """The inputs of a call, one after another."""
    several = isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence)
    return x if several else (x,)
