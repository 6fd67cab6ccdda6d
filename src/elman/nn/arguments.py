"""The door of a Recurrent: checks what comes in, brings it into [T, B, n], and back again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.ir.types import shape_size
from elman.nn.packing import Packing


@dataclass(frozen=True)
class Arguments:
    """What a module takes.

    Attributes:
        cell: name of the cell, for messages.
        inputs, states: (name, sizes without batch and time).
        lead: layers · directions.
        batch_first: whether x is [B, T, n].
    """

    cell: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    states: tuple[tuple[str, tuple[int, ...]], ...]
    lead: int
    batch_first: bool

    @staticmethod
    def of(cell: Cell, dims: dict[str, int], lead: int, batch_first: bool) -> Arguments:
        """The arguments of a cell under a binding of its dims."""
        return Arguments(
            cell.name,
            tuple((entry.name, shape_size(entry.shape, dims)) for entry in cell.inputs),
            tuple((entry.name, shape_size(entry.shape, dims)) for entry in cell.states),
            lead,
            batch_first,
        )

    def opened(
        self, x: Any, state: Any, like: Tensor | None
    ) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, ...]], bool, Packing | None]:
        """Check the arguments and bring them into the inner layout.

        Args:
            x: as given to the module.
            state: as given, or None for zeros.
            like: a weight, whose dtype and device the tensors must have.

        Returns:
            The inputs [T, B, n], or [N, n] if packed; the initial states [B, n], a tuple per layer
            and direction; whether there was a batch; how it was packed, if it was.
        """
        packing, x = self._unpacked(x)
        given = self._tuple(x, self.inputs, "input")
        if packing is not None:
            return self._packed(given, state, like, packing)
        batched = self._batched(given[0])
        if torch._C._is_any_autocast_enabled() and like is not None:
            given = [value.to(like.dtype) for value in given]
        dtype = given[0].dtype if like is None else like.dtype
        device = given[0].device if like is None else like.device
        inputs: list[Tensor] = []
        for (name, sizes), value in zip(self.inputs, given, strict=True):
            self._check(name, value, dtype, device)
            inputs.append(self._laid_out(name, sizes, value, batched))
        steps, batch = inputs[0].shape[:2]
        if steps == 0:
            raise ShapeError("Expected sequence length to be larger than 0 in RNN")
        for (name, _), value in zip(self.inputs, inputs, strict=True):
            if value.shape[:2] != (steps, batch):
                raise ShapeError(
                    f"input {name} has T, B = {value.shape[0]}, {value.shape[1]}, but "
                    f"{self.inputs[0][0]} has {steps}, {batch}"
                )
        return tuple(inputs), self._starts(state, batch, batched, inputs[0]), batched, None

    def _unpacked(self, x: Any) -> tuple[Packing | None, Any]:
        """The data of packed inputs, and how they lie."""
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

    def _packed(
        self, given: list[Tensor], state: Any, like: Tensor | None, packing: Packing
    ) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, ...]], bool, Packing | None]:
        """:meth:`opened` for packed inputs."""
        if torch._C._is_any_autocast_enabled() and like is not None:
            given = [value.to(like.dtype) for value in given]
        dtype = given[0].dtype if like is None else like.dtype
        device = given[0].device if like is None else like.device
        for (name, sizes), value in zip(self.inputs, given, strict=True):
            self._check(name, value, dtype, device)
            if value.shape != (packing.ragged.rows, *sizes):
                raise ShapeError(
                    f"packed input {name} must be {[packing.ragged.rows, *sizes]}, "
                    f"got {list(value.shape)}"
                )
        starts = self._starts(state, packing.ragged.batch, True, given[0])
        ordered = [tuple(packing.sorted(part, 0) for part in own) for own in starts]
        return tuple(given), ordered, True, packing

    def closed(
        self,
        out: Tensor,
        ends: Sequence[tuple[Tensor, ...]],
        batched: bool,
        packing: Packing | None,
    ) -> tuple[Any, Any]:
        """Bring the output and the last states into the caller's layout.

        The states are stacked even if there is one layer: a view could not be ``detach_()``-ed.
        """
        last = [torch.stack(parts) for parts in zip(*ends, strict=True)]
        if packing is not None:
            wrapped = packing.wrapped(out)
            last = [packing.unsorted(value, 1) for value in last]
            return wrapped, last[0] if len(last) == 1 else tuple(last)
        if not batched:
            out, last = out.squeeze(1), [value.squeeze(1) for value in last]
        elif self.batch_first:
            out = out.transpose(0, 1)
        return out, last[0] if len(last) == 1 else tuple(last)

    def _tuple(self, value: Any, declared: tuple[Any, ...], what: str) -> list[Tensor]:
        names = ", ".join(name for name, _ in declared)
        given = list(value) if isinstance(value, (tuple, list)) else [value]
        for part in given:
            if not isinstance(part, Tensor):
                raise InputError(f"{what} of {self.cell} is a tensor, got {type(part).__name__}")
        if len(given) != len(declared):
            hint = f"({names})" if len(declared) > 1 else names
            raise InputError(
                f"{self.cell} has {len(declared)} {what}{'s' * (len(declared) > 1)}, {hint}, "
                f"but {len(given)} {'was' if len(given) == 1 else 'were'} given"
            )
        return given

    def _batched(self, x: Tensor) -> bool:
        name, sizes = self.inputs[0]
        full = 2 + len(sizes)
        if x.dim() not in (full, full - 1):
            raise ShapeError(f"input must have {full} dimensions, got {x.dim()} (input {name})")
        return x.dim() == full

    def _check(self, name: str, value: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        if value.dtype != dtype:
            raise InputError(
                f"RNN input dtype ({value.dtype}) does not match weight dtype ({dtype}). "
                f"Convert input: {name}.to({dtype}), or convert model: model.to({value.dtype})"
            )
        if value.device != device:
            raise InputError(
                f"{name} is on {value.device}, but the weights are on {device}: "
                f"{name}.to({str(device)!r})"
            )

    def _laid_out(self, name: str, sizes: tuple[int, ...], value: Tensor, batched: bool) -> Tensor:
        full = (2 if batched else 1) + len(sizes)
        if value.dim() != full:
            raise ShapeError(f"input {name} must have {full} dimensions, got {value.dim()}")
        if sizes and value.shape[-1] != sizes[0]:
            raise ShapeError(
                f"input.size(-1) must be equal to input_size. Expected {sizes[0]}, got "
                f"{value.shape[-1]} (input {name})"
            )
        if not batched:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if self.batch_first else value

    def _starts(
        self, state: Any, batch: int, batched: bool, like: Tensor
    ) -> list[tuple[Tensor, ...]]:
        if state is None:
            zeros = tuple(
                torch.zeros(batch, *sizes, dtype=like.dtype, device=like.device)
                for _, sizes in self.states
            )
            return [zeros] * self.lead
        given = self._tuple(state, self.states, "state")
        if torch._C._is_any_autocast_enabled():
            given = [value.to(like.dtype) for value in given]
        parts: list[tuple[Tensor, ...]] = []
        for (name, sizes), value in zip(self.states, given, strict=True):
            expected = (self.lead, *([batch] if batched else []), *sizes)
            if tuple(value.shape) != expected:
                raise ShapeError(
                    f"Expected hidden size {expected}, got {list(value.shape)} (state {name})"
                )
            self._check(name, value, like.dtype, like.device)
            parts.append((value if batched else value.unsqueeze(1)).unbind(0))
        return list(zip(*parts, strict=True))
