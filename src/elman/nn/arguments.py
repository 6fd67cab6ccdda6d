"""The arguments of one call of a module: under which names they come, and in which type."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.nn.flags import flags_of_steps
from elman.nn.mask import check_mask, masked_outputs
from elman.nn.reset import check_reset
from elman.nn.signature import Layout, Opened


class Marks(NamedTuple):
    """Which steps of a call are not as the others, as given or in the inner layout.

    Attributes:
        reset, reset_to: as of ``forward``; :data:`elman.nn.reset.Starts` once that is known.
        mask, masked_output: as of ``forward``.
        draws: the random numbers of steps, as of ``forward``.
    """

    reset: Any = None
    reset_to: Any = None
    mask: Any = None
    masked_output: Any = None
    draws: Any = None

    def checked(self) -> Marks:
        """These, if each says something.

        Raises:
            InputError: ``reset_to`` without resets, ``masked_output`` without a mask.
        """
        check_reset(self.reset, self.reset_to)
        check_mask(self.mask, self.masked_output)
        return self

    @property
    def names(self) -> list[str]:
        """Of those that are given."""
        return [name for name in ("reset", "mask", "draws") if getattr(self, name) is not None]

    def laid_out(
        self, x: Any, opened: Opened, batch_first: bool, halves: tuple[int, ...] = ()
    ) -> Marks:
        """In the inner layout: arguments as of :func:`elman.nn.flags.flags_of_steps`; the mask as
        bool.

        Args:
            halves: of the keys of a step, layers · directions and how many, where draws are given.
        """
        reset, mask, draws = [
            None if marks is None else flags_of_steps(name, marks, x, opened, batch_first, sizes)
            for name, marks, sizes in (
                ("reset", self.reset, ()),
                ("mask", self.mask, ()),
                ("draws", self.draws, halves),
            )
        ]
        return self._replace(reset=reset, mask=None if mask is None else mask != 0, draws=draws)

    def handed_out(self, output: Any) -> Any:
        """The output of a call, as the caller has it."""
        zeros = self.mask is not None and self.masked_output == "zeros"
        return masked_outputs(output, self.mask) if zeros else output


class Prepared(NamedTuple):
    """A call whose arguments have been checked.

    Attributes:
        inputs, states, layout: as of :class:`Opened`.
        weights: of each layer and direction.
        marks: of steps, in the inner layout.
        lengths: of a padded batch that is packed only inside a compiled program.
        cast: what the results are cast to; None: as they are.
        learned: what a sequence begins with that is given no state [layers · directions, 1, n],
            laid out as ``states``; None where that is zeros.
        given: whether states were given.
    """

    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    layout: Layout
    weights: list[list[Tensor]]
    marks: Marks
    lengths: Any
    cast: torch.dtype | None
    learned: tuple[Tensor, ...] | None
    given: bool


def named(x: Any, state: Any, input: Any, hx: Any) -> tuple[Any, Any]:
    """x and the state, under our names or under torch's.

    Raises:
        TypeError: one is there under both; or there is no x.
    """
    for ours, theirs, names in ((x, input, "x and input"), (state, hx, "state and hx")):
        if ours is not None and theirs is not None:
            raise TypeError(f"forward() got {names}, which are the same argument")
    if x is None and input is None:
        raise TypeError("forward() missing 1 required argument: 'x'")
    return (input if x is None else x), (hx if state is None else state)


def device_type(value: Any) -> str:
    """torch's device type of a tensor, of packed rows, or of the first of several."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value.device.type if isinstance(value, Tensor) else "cpu"


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Tensors as autocast casts them: all floating-point ones but float64; in lists and tuples."""
    if isinstance(value, Tensor):
        wide = value.dtype is torch.float64 or not value.is_floating_point()
        return value if wide else value.to(dtype)
    if isinstance(value, PackedSequence):
        return value._replace(data=cast_to(value.data, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)([cast_to(part, dtype) for part in value])
    return value
