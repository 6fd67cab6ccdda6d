"""Heads of cells with a matrix per sample: an axis of the caller's tensors, samples inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import ShapeError
from elman.nn.layout.dense import is_dense
from elman.nn.layout.layout import Layout, MatrixShapes, Named, NamedAxes
from elman.nn.layout.packing import check_lengths
from elman.nn.layout.signature import ONE_SEQUENCE, Signature, parts_of
from elman.nn.options.base import check_step_values
from elman.nn.options.bound import SequenceLike
from elman.nn.options.registry import STEP_OPTIONS


class Form(NamedTuple):
    """Form of the arguments of one call.

    Attributes:
        layout: of the caller's tensors.
        batch_first: whether the module's are so inside.
        batch: B.
        joined: whether the heads of the first input, and so of outputs, lie side by side.
        first: the first input.
    """

    layout: Layout
    batch_first: bool
    batch: int
    joined: bool
    first: Any


class Heads(NamedTuple):
    """Heads that are samples: what has B samples of N heads outside has B · N samples inside.

    Attributes:
        count: N; with one there is no axis.
        cell: names of the cells, for messages.
        inputs, static, states: names and sizes of one head.
        axis: of the batch in states.
        lead: sizes before it.
        matrices: which of the values are matrices, rows of K · V units further inside.
    """

    count: int
    cell: str
    inputs: tuple[Named, ...]
    static: tuple[Named, ...]
    states: tuple[Named, ...]
    lead: tuple[int, ...]
    matrices: MatrixShapes | None

    @staticmethod
    def of(count: int, signature: Signature, matrices: MatrixShapes | None) -> Heads:
        """The heads of a module.

        Args:
            count: N.
            signature: of the module, of one head.
            matrices: of the module.
        """
        named = [
            _outer_sizes(getattr(signature, kind), matrices and getattr(matrices, kind))
            for kind in ("inputs", "static", "states")
        ]
        lead = (signature.lead,) * signature.form.alike
        return Heads(count, signature.cell, named[0], named[1], named[2], lead, matrices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of the axis of heads; one head has none."""
        return (self.count,) if self.count > 1 else ()

    def enter(
        self, module: SequenceLike, x: Any, state: Any, options: dict[str, Any]
    ) -> tuple[Any, Any, Form | None]:
        """Inputs and states as the module has them inside; options are replaced by theirs.

        Returns:
            Also the form of the call; None if there is no axis of heads.

        Raises:
            ShapeError, InputError: a shape is another one, or lengths are not so.
        """
        form = self._form(x, module.batch_first) if self.count > 1 else None
        if form is not None:
            pairs = zip(parts_of(x), self.inputs, strict=True)
            row = [self._enter_input(value, *named, form) for value, named in pairs]
            x = tuple(row) if isinstance(x, (tuple, list)) and x is not form.first else row[0]
            if "static" in options:
                options["static"] = self._enter_static(options["static"], form)
            self._enter_options(options, form, module)
            state = self._enter_states(state, form)
        if self.matrices is not None:
            x, state = self.matrices.flatten(x, state, options)
        return x, state, form

    def leave(self, results: tuple[Any, ...], form: Form | None) -> tuple[Any, ...]:
        """The results of a call as the caller has them."""
        if self.matrices is not None:
            results = self.matrices.restore(results)
        if form is None:
            return results
        *sequences, last = results
        outputs = [_map(value, partial(self._leave_steps, form)) for value in sequences]
        if form.layout.batched:
            axis, sizes = len(self.lead), (form.batch, self.count)
            last = _map(last, lambda part: part.unflatten(axis, sizes))
        return *outputs, last

    def axes_before(self, shape: Sequence[int], counts: Sequence[int]) -> tuple[int, bool] | None:
        """The number of axes of the first input before those of one sample, and whether its heads
        lie side by side; None if it has another shape.

        Args:
            shape: of the input.
            counts: how many there may be, the likeliest first.
        """
        _, sizes = self.inputs[0]
        for count in counts:
            for tail in self._tails(sizes):
                if len(shape) == count + len(tail) and tuple(shape[count:]) == tail:
                    return count, len(tail) == len(sizes)
        return None

    def _tails(self, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Sizes of one sample's value: with an axis of heads; side by side, if it is a vector."""
        apart = (self.count, *sizes)
        return [apart, (self.count * sizes[0],)] if len(sizes) == 1 else [apart]

    def _form(self, x: Any, batch_first: bool) -> Form | None:
        """The form of a call; None if there is no axis of heads, or if x is no such row of tensors,
        which is told by :class:`Signature`. Raises ShapeError: the first has another shape."""
        values, packed = parts_of(x), [isinstance(part, PackedSequence) for part in parts_of(x)]
        rows = [_rows(part) for part in values]
        if len(values) != len(self.inputs) or not _are_dense(rows) or len({*packed}) > 1:
            return None
        name, sizes = self.inputs[0]
        place = self.axes_before(rows[0].shape, (1,) if packed[0] else (2, 1))
        if place is None:
            axes = ["rows"] if packed[0] else ["B", "T"] if batch_first else ["T", "B"]
            self._check("input", name, rows[0], [(*axes, *tail) for tail in self._tails(sizes)])
            return None
        batched = packed[0] or place[0] == 2
        layout = Layout(batched, batch_first and batched and not packed[0], packed[0])
        first = values[0]
        batch = int(first.batch_sizes[0]) if packed[0] else layout.time_major(first).shape[1]
        return Form(layout, batch_first, batch, place[1], first)

    def _check(self, kind: str, name: str, value: Tensor, shapes: Sequence[Sequence[Any]]) -> None:
        """Raise ShapeError if a value has none of some shapes."""
        if not any(value.dim() == len(shape) and value.shape == shape for shape in shapes):
            texts = [f"[{', '.join(map(str, shape))}]" for shape in shapes]
            raise ShapeError(
                f"{kind} {name} of {self.cell} with {self.count} heads must be "
                f"{' or '.join(texts)}, got {[*value.shape]}"
            )

    def _enter_input(self, value: Any, name: str, sizes: tuple[int, ...], form: Form) -> Any:
        rows, before = _rows(value), 1 + (form.layout.batched and not form.layout.packed)
        lead = (rows if form.layout.packed else form.first).shape[:before]  # packed: told inside
        self._check("input", name, rows, [(*lead, *tail) for tail in self._tails(sizes)])
        return self._enter_steps(value, sizes, form)

    def _enter_steps(self, value: Any, sizes: Sequence[int], form: Form) -> Any:
        """A value of each step, [.., N, *sizes] or [.., N · n]."""
        if form.layout.packed:
            rows = value.data.reshape(len(value.data) * self.count, *sizes)
            orders = [self._spread(order) for order in value[2:]]
            return PackedSequence(rows, value.batch_sizes * self.count, *orders)
        value = form.layout.time_major(value)
        value = value.reshape(*value.shape[:2], self.count, *sizes).flatten(1, 2)
        return value.transpose(0, 1) if form.batch_first else value

    def _spread(self, order: Tensor | None) -> Tensor | None:
        """The order of all heads, from that of samples."""
        if order is None:
            return None
        heads = torch.arange(self.count, device=order.device)
        return (order.unsqueeze(1) * self.count + heads).flatten()

    def _enter_static(self, static: Any, form: Form) -> Any:
        values = parts_of(static)
        if len(values) != len(self.static) or not _are_dense(values):
            return static  # told by the signature
        row: list[Tensor] = []
        for (name, sizes), value in zip(self.static, values, strict=True):
            shared, batch = (self.count, *sizes), form.batch
            shapes = [shared, (batch, *shared)] if form.layout.batched else [shared]
            self._check("static input", name, value, shapes)
            row.append(value.expand(batch, *shared).reshape(batch * self.count, *sizes))
        return tuple(row) if isinstance(static, (tuple, list)) else row[0]

    def _enter_states(self, state: Any, form: Form) -> Any:
        leaves, axis = _leaves(state), len(self.lead)
        if len(leaves) != len(self.states) or not _are_dense(leaves):
            return state  # none, or told by the signature
        samples = (form.batch,) * form.layout.batched
        for (name, sizes), value in zip(self.states, leaves):
            self._check("state", name, value, [(*self.lead, *samples, self.count, *sizes)])
        return _map(state, lambda value: value.flatten(axis, axis + 1)) if samples else state

    def _enter_options(self, options: dict[str, Any], form: Form, module: SequenceLike) -> None:
        """Options with a value for each step, or each sequence, of all heads."""
        layout, first = form.layout, form.first
        for name, option in STEP_OPTIONS.items():
            if name not in options:
                continue
            sizes = option.sizes(module.runtime, module.training)
            value, lead = options[name], (self.count,) * bool(sizes)
            check_step_values(name, value, first, layout, (*lead, *sizes))
            if not sizes:
                flags = _rows(value).unsqueeze(-1).expand(*_rows(value).shape, self.count)
                value = value._replace(data=flags) if layout.packed else flags
            options[name] = self._enter_steps(value, sizes, form)
        lengths = options.get("lengths")
        if lengths is None or layout.packed:
            return
        if not layout.batched:
            raise ShapeError(ONE_SEQUENCE)
        if torch.compiler.is_compiling():
            lengths = torch.as_tensor(lengths)
        else:
            steps = first.shape[1 if layout.batch_first else 0]
            lengths = check_lengths(lengths, form.batch, steps)
        options["lengths"] = lengths.repeat_interleave(self.count)

    def _leave_steps(self, form: Form, value: Any) -> Any:
        """An output as the caller has it."""
        if form.layout.packed:
            data = self._apart(value.data, 0, len(value.data) // self.count, form)
            return PackedSequence(data, *form.first[1:])
        value = value.transpose(0, 1) if form.batch_first else value
        return form.layout.leave_steps(self._apart(value, 1, form.batch, form), None)

    def _apart(self, value: Tensor, axis: int, count: int, form: Form) -> Tensor:
        """Samples and heads; heads of vectors side by side, if those of the input are so."""
        value = value.unflatten(axis, (count, self.count))
        return value.flatten(axis + 1) if form.joined and value.dim() == axis + 3 else value


def _rows(value: Any) -> Any:
    return value.data if isinstance(value, PackedSequence) else value


def _are_dense(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Tensor) and is_dense(value) for value in values)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change a tensor, a PackedSequence, or each of a tuple or list."""
    if type(value) in (tuple, list):
        return type(value)([_map(part, change) for part in value])
    return change(value)


def _leaves(value: Any) -> list[Any]:
    if not isinstance(value, (tuple, list)):
        return [value]
    return [leaf for part in value for leaf in _leaves(part)]


def _outer_sizes(
    entries: Sequence[Named], matrices: Sequence[NamedAxes] | None
) -> tuple[Named, ...]:
    """Names and sizes of values of one head where a matrix has two axes."""
    if not matrices:
        return tuple(entries)
    pairs = zip(entries, matrices, strict=True)
    return tuple([(name, axes or size) for (name, size), (_, axes) in pairs])
