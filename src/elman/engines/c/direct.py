"""Prepared calls without a backward: argument blocks with everything but the changing addresses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.engines.c.arguments import address
from elman.engines.c.context import Frame
from elman.engines.c.kernel import CKernel
from elman.engines.c.launches import ConcurrentLaunches, Entry
from elman.engines.c.memory import poison
from elman.engines.c.threads import oversubscription, workers
from elman.engines.call import Call

_MOST_BYTES = 1 << 17  # of memory that is kept for further calls of a kind
_like = torch.empty_like


class _Noted(ConcurrentLaunches):
    """Records the argument block of a call instead of running it."""

    def __init__(self) -> None:
        super().__init__(chained=False, threads=1)
        self.function: Any = None
        self.block: Any = None
        self.places: dict[str, int] = {}
        self.sequences: tuple[Tensor, ...] = ()

    def add(self, frame: Frame, entry: Entry, numbers: tuple[int, ...], references: Any) -> None:
        """See :meth:`ConcurrentLaunches.add`."""
        self.function, self.block, self.places = entry.alone, frame.filled(*numbers), frame.places
        _, _, self.sequences, _ = references

    def hand_back(self, spare: deque[Tensor], buffer: Tensor) -> None:
        """At once: calls of a kind have a workspace of their own."""
        spare.append(buffer)


class _Lent:
    """Argument blocks and internal memory of one call at a time.

    Attributes:
        free: how many threads kernels may use.
        weights: where they lie.
        blocks, places: of each kernel, and where its arguments begin.
        calls: the function of each, where its block lies, and whether several threads run it.
        memory: workspaces, and outputs and states of all steps that are not results.
        output: one like that of all kernels; if that is a state, with those before the first step.
    """

    def __init__(self, kernels: Sequence[CKernel], call: Call, free: int) -> None:
        self.free = free
        self.weights = [*map(address, call.weights)]
        self.memory: list[Tensor] = []
        notes: list[_Noted] = []
        inputs, at, (T, B, _) = call.inputs, 0, call.sizes
        for layer, kernel in enumerate(kernels):
            noted, count = _Noted(), kernel.emitter.shape.weights
            states = tuple([state[layer : layer + 1] for state in call.states])
            layer_call = Call(inputs, states, call.weights[at : at + count], None, True)
            output = kernel.begin_forward(layer_call, noted).output
            size = kernel.workspace_bytes(T, B) // kernel.dtype.itemsize
            arena = torch.empty(size, dtype=kernel.dtype, device="cpu")
            noted.block[noted.places["arena"]] = arena.data_ptr()
            self.memory += [arena, output, *noted.sequences]
            inputs, at = (output,), at + count
            notes.append(noted)
        self.output = notes[-1].sequences[0] if kernels[-1].results.output_is_state else inputs[0]
        self.blocks = [noted.block for noted in notes]
        self.places = [noted.places for noted in notes]
        self.calls = [
            (noted.function, addressof(noted.block), noted.block[noted.places["workers"]] > 1)
            for noted in notes
        ]

    def hold(self, kernels: Sequence[CKernel], weights: list[int]) -> None:
        """Update the addresses of the weights."""
        at = 0
        for kernel, block, places in zip(kernels, self.blocks, self.places, strict=True):
            begin, count = places["w"], kernel.emitter.shape.weights
            block[begin : begin + count] = weights[at : at + count]
            at += count
        self.weights = weights

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for value in self.memory:
            poison(value)


class Direct:
    """Calls of kernels one after another: a layer, or a stack of layers. Thread-safe.

    What depends on sizes alone is found once, and memory that no caller sees is used again.

    Args:
        kernels: lowest layer first, made without a backward.
        call: what they are given: the input of the lowest; states [layers, B, n]; all weights.
            Further calls have tensors of the same sizes, strides and types.
    """

    def __init__(self, kernels: Sequence[CKernel], call: Call) -> None:
        self._kernels = tuple(kernels)
        self._input_layout = call.inputs[0].shape, call.inputs[0].stride()
        self._zeros = tuple([torch.zeros_like(state) for state in call.states])
        item = self._kernels[0].dtype.itemsize
        self._rows = [state[0].numel() * item for state in call.states]  # (bytes) of a layer's
        self._poisoned = self._kernels[0].supply.poison
        self._lent: deque[_Lent] = deque(maxlen=2)
        lent = _Lent(self._kernels, call, workers())
        self._lent.append(lent)
        first, top = lent.places[0], lent.places[-1]
        self._x, self._st, self._out = first["in"], top["st"], top["out"]
        self._skip = 0  # (bytes) of the states before the first step
        if self._kernels[-1].results.output_is_state:
            self._skip = lent.output[0].numel() * item
        # for each layer and state: its block, its places, the state, how far its rows lie behind
        self._ends = [
            (layer, places["h0"] + k, places["last"] + k, k, layer * row)
            for layer, places in enumerate(lent.places)
            for k, row in enumerate(self._rows)
        ]

    def copies_nothing(self, call: Call) -> bool:
        """Whether kernels read the input and the weights of a call without copies."""
        lent = self._lent[0]
        read = [
            address
            for block, places, kernel in zip(lent.blocks, lent.places, self._kernels, strict=True)
            for address in block[places["w"] : places["w"] + kernel.emitter.shape.weights]
        ]
        return lent.blocks[0][self._x] == call.inputs[0].data_ptr() and read == lent.weights

    def __call__(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run all steps.

        Args:
            x: lies as that of the call that this was made for; its axes may stand otherwise.
            states, weights: as of that call, contiguous; no states: zeros.

        Returns:
            The output [T, B, n] and the last states.
        """
        free, states = workers(), states or self._zeros
        try:
            lent = self._lent.pop()
        except IndexError:  # other threads have them
            lent = None
        if lent is None or lent.free != free:
            call = Call(
                (x.as_strided(*self._input_layout),), tuple(states), tuple(weights), None, True
            )
            lent = _Lent(self._kernels, call, free)
        addresses = [*map(address, weights)]
        if addresses != lent.weights:
            lent.hold(self._kernels, addresses)
        if self._poisoned:
            lent.poison()
        output, last = _like(lent.output), [*map(_like, states)]
        if self._poisoned:
            for value in (output, *last):
                poison(value)
        blocks = lent.blocks
        begin, end = [*map(address, states)], [*map(address, last)]
        for layer, first, final, k, behind in self._ends:
            block = blocks[layer]
            block[first], block[final] = begin[k] + behind, end[k] + behind
        blocks[0][self._x] = x.data_ptr()
        block, out = blocks[-1], output.data_ptr()
        block[self._out] = out + self._skip
        if self._skip:
            block[self._st] = out
        for function, block, shared in lent.calls:
            stolen = function(block)
            if shared:
                oversubscription.tell(stolen)
        self._lent.append(lent)
        return (output[1:] if self._skip else output), last


def direct(kernels: Sequence[Kernel], call: Call) -> Direct | None:
    """Prepare further calls like a given one; None if a kernel copies arguments or needs much
    memory.

    Args:
        kernels, call: as of :class:`Direct`.
    """
    steps, batch, rows = call.sizes
    c_kernels = [kernel for kernel in kernels if isinstance(kernel, CKernel) and _serves(kernel)]
    if not rows or len(c_kernels) < len(kernels):
        return None
    memory = sum(k.workspace_bytes(steps, batch) + k.tape_bytes(steps, batch) for k in c_kernels)
    if memory > _MOST_BYTES:
        return None
    prepared_call = Direct(c_kernels, call)
    return prepared_call if prepared_call.copies_nothing(call) else None


def _serves(kernel: CKernel) -> bool:
    """Whether a kernel has one input and one row of its output per sample and step, and no
    backward."""
    one_row = kernel.emitter.shape.inputs == 1 and not kernel.results.scalar_output
    return one_row and not kernel.spec.training
