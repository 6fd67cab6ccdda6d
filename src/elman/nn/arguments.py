"""The door of a Recurrent: checks what comes in, brings it into [T, B, n], and back again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError, ShapeError, rows
from elman.frontend.cell import Cell
from elman.ir.types import shape_size
from elman.nn.dense import check_dense
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
        given = self._as_weights(self._tuple(x, self.inputs, "input"), like)
        if packing is not None:
            return self._packed(given, state, like, packing)
        batched = given[0].dim() == 2 + len(self.inputs[0][1])
        inputs: list[Tensor] = []
        for (name, sizes), value in zip(self.inputs, given, strict=True):
            self._check("input", name, value, like, given[0])
            inputs.append(self._laid_out(name, sizes, value, batched))
        steps, batch = inputs[0].shape[:2]
        if steps == 0:
            raise ShapeError(
                f"input {self.inputs[0][0]} of {self.cell} has no steps: {[*given[0].shape]}"
            )
        for (name, _), value in zip(self.inputs, inputs, strict=True):
            if value.shape[:2] != (steps, batch):
                raise ShapeError(
                    f"input {name} of {self.cell} has T, B = {value.shape[0]}, {value.shape[1]}, "
                    f"but {self.inputs[0][0]} has {steps}, {batch}"
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
        for (name, sizes), value in zip(self.inputs, given, strict=True):
            self._check("input", name, value, like, given[0])
            if value.shape != (packing.ragged.rows, *sizes):
                raise ShapeError(
                    f"packed input {name} of {self.cell} must be "
                    f"{[packing.ragged.rows, *sizes]}, got {[*value.shape]}"
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
            check_dense(part, f"{what} of {self.cell}")
        if len(given) != len(declared):
            hint = f"({names})" if len(declared) > 1 else names
            raise InputError(
                f"{self.cell} has {len(declared)} {what}{'s' * (len(declared) > 1)}, {hint}, "
                f"but {len(given)} {'was' if len(given) == 1 else 'were'} given"
            )
        return given

    def _as_weights(self, given: list[Tensor], like: Tensor | None) -> list[Tensor]:
        """Masks as numbers, 1 where true; under autocast everything in the type of the weights."""
        if like is not None and torch._C._is_any_autocast_enabled():
            return [value.to(like.dtype) for value in given]
        if all(value.dtype != torch.bool for value in given):
            return given
        others = (value.dtype for value in given if value.dtype != torch.bool)
        dtype = next(others, torch.get_default_dtype()) if like is None else like.dtype
        return [value.to(dtype) if value.dtype == torch.bool else value for value in given]

    def _check(
        self, kind: str, name: str, value: Tensor, weight: Tensor | None, first: Tensor
    ) -> None:
        """Compare dtype and device with a weight's, or with the first input's if there is none."""
        like = first if weight is None else weight
        if value.dtype == like.dtype and value.device == like.device:
            return
        whose = f"input {self.inputs[0][0]} is" if weight is None else "its weights are"
        if value.device != like.device:
            told, hint = f"on {value.device}, but {whose} on {like.device}", str(like.device)
            hint = f"{name}.to({hint!r})"
        else:
            told, hint = f"{value.dtype}, but {whose} {like.dtype}", f"{name}.to({like.dtype})"
            hint = f"{name}.real" if value.is_complex() else hint
            hint += f", or net.to({value.dtype})" if weight is not None and _weighs(value) else ""
        raise InputError(rows(f"{kind} {name} of {self.cell} is {told}", [], hint))

    def _laid_out(self, name: str, sizes: tuple[int, ...], value: Tensor, batched: bool) -> Tensor:
        lead = ["T"] if not batched else ["B", "T"] if self.batch_first else ["T", "B"]
        if value.dim() != len(lead) + len(sizes) or value.shape[len(lead) :] != sizes:
            first = name == self.inputs[0][0] and not batched
            shapes = [["B", "T"] if self.batch_first else ["T", "B"], ["T"]] if first else [lead]
            told = [f"[{', '.join(map(str, [*shape, *sizes]))}]" for shape in shapes]
            raise ShapeError(
                f"input {name} of {self.cell} must be {', or unbatched '.join(told)}, "
                f"got {[*value.shape]}"
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
        given = self._as_weights(self._tuple(state, self.states, "state"), like)
        parts: list[tuple[Tensor, ...]] = []
        for (name, sizes), value in zip(self.states, given, strict=True):
            expected = (self.lead, *([batch] if batched else []), *sizes)
            if tuple(value.shape) != expected:
                raise ShapeError(
                    f"state {name} of {self.cell} must be {[*expected]}, got {[*value.shape]}: "
                    f"layers · directions{', batch' if batched else ''}{', units' if sizes else ''}"
                )
            self._check("state", name, value, None, like)
            parts.append((value if batched else value.unsqueeze(1)).unbind(0))
        return list(zip(*parts, strict=True))


def _weighs(value: Tensor) -> bool:
    """Whether weights of a tensor's type can be trained."""
    return value.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
