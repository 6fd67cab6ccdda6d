"""What a module takes: checks what comes in, brings it into [T, B, n], and back again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError, diagnostic
from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import shape_size
from elman.nn.dense import as_tensor, check_dense, is_dense
from elman.nn.packing import Packing, Padding, checked_lengths
from elman.nn.states import Named, StateForm


class Layout(NamedTuple):
    """How the arguments of a call lay, to be undone for its results.

    Attributes:
        batched: whether there was an axis of samples.
        batch_first: whether it came before that of time.
        packing: how the sequences are packed, if they are.
        padding: where they lay in a padded batch, if that was packed here.
    """

    batched: bool
    batch_first: bool
    packing: Packing | None = None
    padding: Padding | None = None


_BATCHED = (Layout(True, False), Layout(True, True))  # by batch_first


class Opened(NamedTuple):
    """Arguments in the inner layout.

    Attributes:
        inputs: [T, B, n] each; packed: [N, n]; then static ones, [B, n] each.
        states: [layers · directions, B, n] each, or as :class:`StateForm` says, in the order of the
            packed rows.
        layout: how they lay before.
    """

    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    layout: Layout


@dataclass(frozen=True)
class Signature:
    """What a module takes.

    Attributes:
        cell: name of the cell, for messages.
        inputs, static, states: (name, sizes without batch and time).
        lead: rows of each state: layers · directions, or 1 where layers have states of their own.
        form: how states lie.
        takes: which of the inputs, and of the static ones after them, each layer and direction
            reads; the first stands for the output of the layer below too.
    """

    cell: str
    inputs: tuple[Named, ...]
    static: tuple[Named, ...]
    states: tuple[Named, ...]
    lead: int
    form: StateForm
    takes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(layers: Mapping[str, tuple[Cell, dict[str, int]]]) -> Signature:
        """The signature of cells under bindings of their dims.

        Args:
            layers: by the suffix of each layer and direction. Further inputs of one name are the
                same.
        """
        each = [[_sized(group, dims) for group in (cell.inputs, cell.static, cell.states)]
                for cell, dims in layers.values()]  # fmt: skip
        first = each[0][0][0]
        further = tuple(dict.fromkeys([value for own, *_ in each for value in own[1:]]))
        static = tuple(dict.fromkeys([value for _, own, _ in each for value in own]))
        takes = [
            (0, *[1 + further.index(value) for value in own[1:]],
             *[1 + len(further) + static.index(value) for value in fixed])
            for own, fixed, _ in each
        ]  # fmt: skip
        form, states = StateForm.of([own for *_, own in each]), each[0][2]
        if not form.alike:
            states = tuple(
                [(f"{name}_{suffix}", sizes) for suffix, (*_, own) in zip(layers, each)
                 for name, sizes in own]
            )  # fmt: skip
        names = "/".join(dict.fromkeys([cell.name for cell, _ in layers.values()]))
        lead = len(layers) if form.alike else 1
        return Signature(names, (first, *further), static, states, lead, form, tuple(takes))

    def opened(
        self,
        x: Any,
        state: Any,
        like: Tensor | None,
        batch_first: bool,
        lengths: Any = None,
        static: Any = None,
    ) -> Opened:
        """Check the arguments and bring them into the inner layout.

        Args:
            x: as given to the module.
            state: as given, or None for zeros.
            like: a weight, whose dtype and device the tensors must have.
            batch_first: whether x is [B, T, n].
            lengths: steps of each sequence of a padded batch, to be packed here.
            static: inputs with one value per sequence, as given.

        Raises:
            ShapeError, InputError: one of them is not what the module takes.
        """
        opened = self._opened(x, state, like, batch_first, lengths)
        if static is None and not self.static:
            return opened
        return opened._replace(inputs=(*opened.inputs, *self._fixed(static, like, opened)))

    def check_static(self) -> None:
        """Refuse static inputs of a module that has none. Raises InputError."""
        if not self.static:
            raise InputError(diagnostic(f"{self.cell} has no static inputs", [], "net(x)"))

    def _opened(
        self, x: Any, state: Any, like: Tensor | None, batch_first: bool, lengths: Any
    ) -> Opened:
        """:meth:`opened` without static inputs."""
        if lengths is None and like is not None and self._is_usual(x, like, batch_first):
            whole = x.transpose(0, 1) if batch_first else x
            states = self._starts(state, whole.shape[1], True, whole)
            return Opened((whole,), states, _BATCHED[batch_first])
        packing, x = self._unpacked(x)
        if packing is not None and lengths is not None:
            raise InputError("lengths= is for padded tensors: a PackedSequence has its own lengths")
        parts = self._numbers(self._tensors(x, self.inputs, "input"), like)
        if packing is not None:
            self._check_packed(parts, like, packing)
            return self._packed(parts, state, Layout(True, False, packing))
        name, sizes = self.inputs[0]
        batched = parts[0].dim() == 2 + len(sizes)
        if lengths is not None and parts[0].dim() < 2 + len(sizes):
            raise ShapeError("lengths= is for a batch of sequences: this input is a single one")
        inputs: list[Tensor] = []
        for (name, sizes), value in zip(self.inputs, parts, strict=True):
            self._check("input", name, value, like, parts[0])
            inputs.append(self._laid_out(name, sizes, value, batched, batch_first))
        steps, batch = inputs[0].shape[:2]
        name = self.inputs[0][0]
        if steps == 0:
            raise ShapeError(f"input {name} of {self.cell} has no steps: {[*parts[0].shape]}")
        for (other, _), value in zip(self.inputs[1:], inputs[1:], strict=True):
            if value.shape[:2] != (steps, batch):
                raise ShapeError(
                    f"input {other} of {self.cell} has T, B = {value.shape[0]}, {value.shape[1]}, "
                    f"but {name} has {steps}, {batch}"
                )
        counts = None if lengths is None else checked_lengths(lengths, batch, steps)
        if counts is not None and batch:
            padding = Padding.of(counts, steps, inputs[0].device)
            rows_of = tuple([padding.packed(value) for value in inputs])
            packing = Packing.of(padding.like)
            return self._packed(rows_of, state, Layout(True, batch_first, packing, padding))
        states = self._starts(state, batch, batched, inputs[0])
        return Opened(tuple(inputs), states, Layout(batched, batch_first))

    def closed(
        self, made: Sequence[Tensor], last: Sequence[Tensor], layout: Layout
    ) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Bring what is handed out and the last states [lead, B, n] into the caller's layout.

        Args:
            made, last, layout: of a call.
        """
        packing = layout.packing
        if packing is not None:
            last = tuple([packing.unsorted(value, 1) for value in last])
            if layout.padding is None:
                return [packing.wrapped(out) for out in made], last
            made = [layout.padding.padded(out) for out in made]
        elif not layout.batched:
            return [out.squeeze(1) for out in made], tuple([value.squeeze(1) for value in last])
        return [out.transpose(0, 1) if layout.batch_first else out for out in made], tuple(last)

    def _is_usual(self, x: Any, like: Tensor, batch_first: bool) -> bool:
        """Whether x is one batch of one input with nothing to be done or said: most calls."""
        sizes = self.inputs[0][1]
        return (
            type(x) is Tensor
            and len(self.inputs) == 1
            and x.dim() == 2 + len(sizes)
            and x.dtype is like.dtype
            and x.device == like.device
            and is_dense(x)
            and x.shape[2:] == sizes
            and x.shape[batch_first] > 0
        )

    def _unpacked(self, x: Any) -> tuple[Packing | None, Any]:
        """The data of packed inputs, and how they lie."""
        if isinstance(x, Tensor):
            return None, x
        parts = [x] if isinstance(x, PackedSequence) else x
        if not isinstance(parts, (tuple, list)):
            return None, x
        packed = [part for part in parts if isinstance(part, PackedSequence)]
        if not packed:
            return None, x
        first = packed[0]
        for part in packed[1:]:
            if not torch.equal(part.batch_sizes, first.batch_sizes):
                raise ShapeError(f"the packed inputs of {self.cell} differ in their lengths")
        if len(packed) != len(parts):
            raise InputError(f"either all inputs of {self.cell} are packed, or none")
        return Packing.of(first), [part.data for part in packed]

    def _check_packed(self, parts: list[Tensor], like: Tensor | None, packing: Packing) -> None:
        for (name, sizes), value in zip(self.inputs, parts, strict=True):
            self._check("input", name, value, like, parts[0])
            if value.shape != (packing.packed.rows, *sizes):
                raise ShapeError(
                    f"packed input {name} of {self.cell} must be "
                    f"{[packing.packed.rows, *sizes]}, got {[*value.shape]}"
                )

    def _packed(self, inputs: Sequence[Tensor], state: Any, layout: Layout) -> Opened:
        """Packed rows, with states in their order."""
        packing = layout.packing
        assert packing is not None, "set by the caller"
        starts = self._starts(state, packing.packed.batch, True, inputs[0])
        return Opened(tuple(inputs), tuple([packing.sorted(s, 1) for s in starts]), layout)

    def _tensors(self, value: Any, declared: tuple[Any, ...], what: str) -> list[Tensor]:
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        for part in values:
            if not isinstance(part, Tensor):
                message = f"{what} of {self.cell} is a tensor, got {type(part).__name__}"
                raise InputError(diagnostic(message, [], as_tensor(part, "x")))
            check_dense(part, what, self.cell)
        if len(values) != len(declared):
            names = ", ".join(name for name, _ in declared)
            hint = f"({names})" if len(declared) > 1 else names
            message = (
                f"{self.cell} has {len(declared)} {what}{'s' * (len(declared) > 1)}, {hint}, "
                f"but {len(values)} {'was' if len(values) == 1 else 'were'} given"
            )
            calls = {"input": f"net({hint})", "state": f"net(x, {hint})"}
            call = calls.get(what, f"net(x, static={hint})")
            if what == "state" and self.static:
                fixed = ", ".join(name for name, _ in self.static)
                call += f"; net(x, static=…) for its static inputs: {fixed}"
            raise InputError(diagnostic(message, [], call))
        return values

    def _numbers(self, values: list[Tensor], like: Tensor | None) -> list[Tensor]:
        """Masks as numbers of the weights' type, 1 where true."""
        if all(value.dtype is not torch.bool for value in values):
            return values
        others = (value.dtype for value in values if value.dtype != torch.bool)
        dtype = next(others, torch.get_default_dtype()) if like is None else like.dtype
        return [value.to(dtype) if value.dtype == torch.bool else value for value in values]

    def _check(
        self, kind: str, name: str, value: Tensor, weight: Tensor | None, first: Tensor
    ) -> None:
        """Compare dtype and device with a weight's, or with the first input's if there is none."""
        like = first if weight is None else weight
        if value.dtype == like.dtype and value.device == like.device:
            return
        whose = f"input {self.inputs[0][0]} is" if weight is None else "its weights are"
        if value.device != like.device:
            what, hint = f"on {value.device}, but {whose} on {like.device}", str(like.device)
            hint = f"{name}.to({hint!r})"
        else:
            what, hint = f"{value.dtype}, but {whose} {like.dtype}", f"{name}.to({like.dtype})"
            hint = f"{name}.real" if value.is_complex() else hint
            hint += f", or net.to({value.dtype})" if weight is not None and _trains(value) else ""
        raise InputError(diagnostic(f"{kind} {name} of {self.cell} is {what}", [], hint))

    def _laid_out(
        self, name: str, sizes: tuple[int, ...], value: Tensor, batched: bool, batch_first: bool
    ) -> Tensor:
        count = 2 if batched else 1
        if value.dim() != count + len(sizes) or value.shape[count:] != sizes:
            full = ["B", "T"] if batch_first else ["T", "B"]
            first = name == self.inputs[0][0] and not batched
            shapes = [full, ["T"]] if first else [full if batched else ["T"]]
            texts = [f"[{', '.join(map(str, [*shape, *sizes]))}]" for shape in shapes]
            raise ShapeError(
                f"input {name} of {self.cell} must be {', or unbatched '.join(texts)}, "
                f"got {[*value.shape]}"
            )
        if not batched:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if batch_first else value

    def _fixed(self, static: Any, like: Tensor | None, opened: Opened) -> list[Tensor]:
        """Static inputs [B, n], in the order of the packed rows.

        Raises:
            ShapeError, InputError: they are missing, or not what the module takes.
        """
        if static is None:
            names = ", ".join(name for name, _ in self.static)
            hint = "net(x, static=…): one value per sequence"
            raise InputError(diagnostic(f"{self.cell} has static inputs: {names}", [], hint))
        self.check_static()
        values = self._numbers(self._tensors(static, self.static, "static input"), like)
        layout, first = opened.layout, opened.inputs[0]
        packing = layout.packing
        batch = first.shape[1] if packing is None else packing.packed.batch
        made: list[Tensor] = []
        for (name, sizes), value in zip(self.static, values, strict=True):
            self._check("static input", name, value, like, first)
            expected = (batch, *sizes) if layout.batched else sizes
            if value.shape != expected:
                axes = "batch, units" if sizes else "batch"
                raise ShapeError(
                    f"static input {name} of {self.cell} must be {[*expected]}, got "
                    f"{[*value.shape]}{f': {axes}' if layout.batched else ''}"
                )
            value = value if layout.batched else value.unsqueeze(0)
            made.append(value if packing is None else packing.sorted(value, 0))
        return made

    def _starts(self, state: Any, batch: int, batched: bool, like: Tensor) -> tuple[Tensor, ...]:
        """Initial states [lead, B, n]."""
        if state is None:
            return tuple([like.new_zeros(self.lead, batch, *sizes) for _, sizes in self.states])
        if not self.form.alike:
            return self._own_starts(state, (batch,) if batched else (), like)
        values = self._numbers(self._tensors(state, self.states, "state"), like)
        for (name, sizes), value in zip(self.states, values, strict=True):
            expected = (self.lead, batch, *sizes) if batched else (self.lead, *sizes)
            if value.shape != expected:
                what = (
                    f"state {name} of {self.cell} must be {[*expected]}, got {[*value.shape]}: "
                    f"layers · directions{', batch' if batched else ''}{', units' if sizes else ''}"
                )
                named = "lengths=…, reset=…, mask=… are given by name"
                fewer = value.dim() < len(expected)
                raise ShapeError(diagnostic(what, [], named if fewer else ""))
            self._check("state", name, value, None, like)
        return tuple(values) if batched else tuple([value.unsqueeze(1) for value in values])

    def _own_starts(self, state: Any, lead: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
        """Initial states [1, B, n] of layers that have their own, from the caller's list."""
        found = self.form.opened(state)
        if found is None:
            raise InputError(
                diagnostic(
                    f"layers of {self.cell} have states of their own: state is a list of "
                    f"{len(self.form.counts)}, one for each layer and direction",
                    [("states", ", ".join(name for name, _ in self.states))],
                    "out, state = net(x); net(x, state): a tensor [B, n] for each, a tuple where "
                    "a cell has several",
                )
            )
        values = self._numbers(self._tensors(found, self.states, "state"), like)
        for (name, sizes), value in zip(self.states, values, strict=True):
            expected = (*lead, *sizes)
            if value.shape != expected:
                raise ShapeError(
                    f"state {name} of {self.cell} must be {[*expected]}, got {[*value.shape]}"
                )
            self._check("state", name, value, None, like)
        return tuple([value[None] if lead else value[None, None] for value in values])


def _sized(group: Sequence[Declared], dims: dict[str, int]) -> tuple[Named, ...]:
    return tuple([(entry.name, shape_size(entry.shape, dims)) for entry in group])


def _trains(value: Tensor) -> bool:
    """Whether weights of a tensor's type can be trained."""
    return value.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
