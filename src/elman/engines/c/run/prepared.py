"""Prepared calls of one kind: blocks and buffers are made once; each call sets addresses only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel, WrappedKernel
from elman.engines.c.calls.context import Frame
from elman.engines.c.calls.noted import NOTED, Launch
from elman.engines.c.process.memory import (
    address,
    address_or_null,
    contiguous_or_none,
    full_storage,
    poison,
    rows_of,
)
from elman.engines.c.process.threads import oversubscription, workers
from elman.engines.c.run.kernel import CKernel
from elman.engines.c.run.launches import ConcurrentLaunches, Entry
from elman.engines.call import Call, Cotangents, Gradients, Result

MOST_BYTES = 1 << 17  # of memory kept for further calls of a kind; two calls at a time


class _Recorder(ConcurrentLaunches):
    """Records the argument block of a call instead of running it."""

    def __init__(self) -> None:
        super().__init__(chained=False, threads=1)
        self.function: Any = None
        self.block: Any = None
        self.sequences: tuple[Tensor, ...] = ()

    def add(self, frame: Frame, entry: Entry, numbers: tuple[int, ...], references: Any) -> None:
        self.function, self.block = entry.alone, frame.filled(*numbers)
        self.sequences = references[2]

    def hand_back(self, spare: deque[Tensor], buffer: Tensor) -> None:
        """Hand the buffer back at once, since nothing runs."""
        spare.append(buffer)


class _Layer:
    """Calls of one kind of one kernel: places of their arguments, sizes, allocators.

    Attributes:
        kernel: of the layer.
        out, tape, arena, h0, last, dy, dlast, dst: first index of arguments.
        x, dx, st, w, dw: slices of the arguments: inputs, states of all steps, weights, gradients.
        weights: slice of its weights among all weights.
        saved: slice of its saved tensors among all saved tensors.
        tape_size: size of the tape (elements).
        is_state: whether the output is the sequence of the first state.
        skip: distance from the initial states to the output in their common memory (bytes).
        saves_output: whether the output is saved as a tensor of its own, for the layer above.
        sequences, output: allocators of the state sequences and of the output.
        like_inputs, like_weights: allocators of the gradients of each input and weight; None if not
            wanted.
    """

    def __init__(self, kernel: CKernel, call: Call, first: int, saved: int, top: bool) -> None:
        places, results, supply = kernel.places, kernel.results, kernel.supply
        (T, B, rows), count = call.sizes, len(call.weights)
        self.kernel, self.weights = kernel, slice(first, first + count)
        self.out, inputs = places["out"], len(call.inputs)
        self.x, self.dx = (slice(at, at + inputs) for at in (places["in"], places["din"]))
        self.h0, self.last, self.dy = places["h0"], places["last"], places["dy"]
        self.dst, self.dlast = places["dst"], places["dlast"]
        self.arena, self.tape = places["arena"], places["tape"]
        shapes = results.sequences(T, B, kernel.schedule(T, B).chunk)
        self.first, self.st = places["st"], slice(places["st"], places["st"] + len(shapes))
        self.w = slice(places["w"], places["w"] + count)
        self.dw = slice(places["dw"], places["dw"] + count)
        self.tape_size = rows * results.tape_row
        self.is_state = results.output_is_state
        self.skip = shapes[0][1] * shapes[0][2] * kernel.dtype.itemsize if self.is_state else 0
        self.saves_output = not (self.is_state or top)  # the backward of the layer above reads it
        self.saved = slice(saved, saved + len(shapes) + self.saves_output + 1)
        self.sequences = [supply.maker(shape) for shape in shapes]
        self.output = supply.maker((T, B, results.output_width))
        self.like_inputs, self.like_weights = results.gradient_makers(call)

    def allocate(self, numbers: Any, saved: list[Tensor] | None) -> Tensor:
        """Allocate the output of a call, and all tensors that a backward needs.

        Args:
            numbers: arguments of the call, in which addresses are set.
            saved: list to which the backward's tensors are added; None: there is no backward.
        """
        if saved is None and not self.is_state:
            output = self.output()
            numbers[self.out] = output.data_ptr()
            return output
        if saved is None:
            sequence = self.sequences[0]()
            numbers[self.first] = at = sequence.data_ptr()
            numbers[self.out] = at + self.skip
            return sequence[1:]
        sequences = [make() for make in self.sequences]
        numbers[self.st] = [*map(address, sequences)]
        output = sequences[0][1:] if self.is_state else self.output()
        tape = self._take_tape()
        numbers[self.out], numbers[self.tape] = output.data_ptr(), tape.data_ptr()
        saved += (*sequences, output, tape) if self.saves_output else (*sequences, tape)
        return output

    def _take_tape(self) -> Tensor:
        kernel, size = self.kernel, self.tape_size
        try:
            tape = kernel.tapes.pop()
        except IndexError:  # no call gave one back, or another thread took it
            tape = None
        if tape is None or tape.numel() != size or kernel.supply.poison:
            tape = kernel.supply.take(kernel.tapes, size)[:size]
        return tape

    def output_of(self, saved: Sequence[Tensor]) -> Tensor:
        """The output, from the saved tensors of all layers; the last layer does not save its."""
        place = self.saved
        return saved[place.start][1:] if self.is_state else saved[place.stop - 2]


class _CallBuffers:
    """Argument blocks and internal memory of one call at a time.

    Attributes:
        free: number of threads that kernels may use.
        weights: addresses of the weights.
        blocks: block of each layer, for both directions.
        calls: for each layer its forward, its backward, the address of its block, and whether
            several threads run it.
        sizes: sizes of the layers' workspaces (elements).
        arenas: workspaces, if they are kept between calls.
        memory: without a backward: outputs and states of all steps that are not results.
    """

    def __init__(self, layers: Sequence[_Layer], call: Call, free: int, keeps_arenas: bool) -> None:
        self.free, self.weights = free, [*map(address, call.weights)]
        self.blocks, self.calls = list[Any](), list[tuple[Any, Any, int, bool]]()
        self.arenas, self.memory, self.sizes = list[Tensor](), list[Tensor](), list[int]()
        inputs = call.inputs
        for index, layer in enumerate(layers):
            kernel, recorder = layer.kernel, _Recorder()
            states = tuple([state[index : index + 1] for state in call.states])
            layer_call = Call(inputs, states, call.weights[layer.weights], None, True)
            result = kernel.begin_forward(layer_call, recorder)
            forward = backward = recorder.function
            inputs = (result.output,)
            if kernel.spec.training:
                cotangents = Cotangents(result.output, result.last)
                kernel.begin_backward(layer_call, result.saved, cotangents, False, recorder)
                backward = recorder.function
            else:
                self.memory += (result.output, *recorder.sequences)
            block = recorder.block
            block[layer.arena] = 0  # without an arena a kernel returns the size that it needs
            needed = [function(addressof(block)) for function in (forward, backward)]
            self.sizes.append(-(-max(needed) // kernel.dtype.itemsize))
            if keeps_arenas:
                arena = torch.empty(self.sizes[-1], dtype=kernel.dtype, device="cpu")
                block[layer.arena] = arena.data_ptr()
                self.arenas.append(arena)
            self.blocks.append(block)
            team = block[kernel.places["workers"]] > 1
            self.calls.append((forward, backward, addressof(block), team))

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for value in (*self.arenas, *self.memory):
            poison(value)


class PreparedKernel(WrappedKernel):
    """Kernels one after another, for calls of one kind: a layer, or a stack of layers. Thread-safe.

    Arguments that depend on sizes alone are computed once; a call sets addresses. Small internal
    memory is reused.

    Args:
        kernel: a kernel that runs such calls.
        members: its layers, lowest first: all have a backward, or none has.
        call: a call of the kind: the input of the lowest layer; states [layers, B, n]; all weights.
            Further calls have tensors of the same sizes, strides and types.

    Attributes:
        bytes: size of workspaces, tapes and states of all steps of a call.
        intermediate_bytes: without a backward: size of outputs and states of all steps that are not
            results.
    """

    def __init__(self, kernel: Kernel, members: Sequence[CKernel], call: Call) -> None:
        super().__init__(kernel)
        inputs, first, saved = call.inputs, 0, 0
        self._input_layouts = [(x.shape, x.stride()) for x in inputs]
        self._layers: list[_Layer] = []
        for index, member in enumerate(members):  # layers of one kind are one kernel
            weights = call.weights[first : first + member.emitter.shape.weights]
            layer_call = call._replace(inputs=inputs, weights=weights)
            layer = _Layer(member, layer_call, first, saved, index == len(members) - 1)
            self._layers.append(layer)
            inputs, first, saved = (layer.output(),), layer.weights.stop, layer.saved.stop
        top, item = members[-1], members[-1].dtype.itemsize
        self._training, self._poisoned = top.spec.training, top.supply.poison
        makers = {top.supply.maker_like(state) for state in call.states}
        self._like_state = makers.pop() if len(makers) == 1 else top.supply.like
        rows = [state[0].numel() * item for state in call.states]  # (bytes) of a layer's
        # for each layer and state: the layer, indices of its first and last values, the state, and
        # the distance of its rows from those of the first layer (bytes)
        self._states = [
            (n, layer.h0 + k, layer.last + k, k, n * row)
            for n, layer in enumerate(self._layers)
            for k, row in enumerate(rows)
        ]
        self._no_dy = torch.zeros(top.results.output_width, dtype=top.dtype, device="cpu")
        T, B, _ = call.sizes
        self.bytes = sum(m.workspace_bytes(T, B) + m.tape_bytes(T, B) for m in members)
        self._keeps_arenas = self.bytes <= MOST_BYTES
        # two calls at a time; further threads make buffers of their own
        self._free_buffers: deque[_CallBuffers] = deque(maxlen=2)
        buffers = _CallBuffers(self._layers, call, workers(), self._keeps_arenas)
        self.intermediate_bytes = sum(value.nbytes for value in buffers.memory)
        self._free_buffers.append(buffers)
        self._end = self._free_buffers.append if self._keeps_arenas else self._give_arenas_back

    def reads_in_place(self, call: Call) -> bool:
        """Whether kernels read the input and the weights of the constructor's call in place."""
        buffers = self._free_buffers[0]
        pairs = [*zip(self._layers, buffers.blocks)]
        read = [at for layer, block in pairs for at in block[layer.w]]
        return (
            buffers.blocks[0][self._layers[0].x] == [*map(address, call.inputs)]
            and read == buffers.weights
        )

    def _borrow(self, call: Call) -> _CallBuffers:
        """Argument blocks for a call, which have its weights."""
        free = workers()
        try:
            buffers = self._free_buffers.pop()
        except IndexError:  # calls of other threads have borrowed them
            buffers = None
        if buffers is None or buffers.free != free:  # blocks have the number of workers
            inputs = [x.as_strided(*lies) for x, lies in zip(call.inputs, self._input_layouts)]
            call = call._replace(inputs=tuple(inputs))
            buffers = _CallBuffers(self._layers, call, free, self._keeps_arenas)
        weights = [*map(address, call.weights)]
        if weights != buffers.weights:  # `data =` and `to` move weights without a notice
            buffers.weights = weights
            for layer, block in zip(self._layers, buffers.blocks):
                block[layer.w] = weights[layer.weights]
        if self._poisoned:
            buffers.poison()
        if not self._keeps_arenas:
            for layer, block, size in zip(self._layers, buffers.blocks, buffers.sizes):
                kernel = layer.kernel
                buffers.arenas.append(kernel.supply.take(kernel.arenas, size))
                block[layer.arena] = buffers.arenas[-1].data_ptr()
        return buffers

    def _give_arenas_back(self, buffers: _CallBuffers) -> None:
        """End a call that has taken its workspaces from the kernels' spare ones."""
        for layer, arena in zip(self._layers, buffers.arenas):
            layer.kernel.arenas.append(arena)
        buffers.arenas = []
        self._free_buffers.append(buffers)

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`; states are [layers, B, n]; inputs have the strides of the
        constructor's call, which may be transposed."""
        buffers, states, layers = self._borrow(call), call.states, self._layers
        blocks, saved = buffers.blocks, list[Tensor]() if self._training else None
        last = [*map(self._like_state, states)]
        begin, end = [*map(address, states)], [*map(address, last)]
        for index, h0, final, k, behind in self._states:
            block = blocks[index]
            block[h0], block[final] = begin[k] + behind, end[k] + behind
        blocks[0][layers[0].x] = [*map(address, call.inputs)]
        if saved is None:
            output = layers[-1].allocate(blocks[-1], None)
        else:
            output = layers[0].allocate(blocks[0], saved)
            for layer, block in zip(layers[1:], blocks[1:]):
                block[layer.x] = (output.data_ptr(),)
                output = layer.allocate(block, saved)
        for function, _, block_address, team in buffers.calls:
            stolen = function(block_address)
            if team:
                oversubscription.tell(stolen)
        if (launches := NOTED.get()) is None:
            self._end(buffers)
        else:  # the recorded launches own its blocks and workspaces from now on
            for function, _, block_address, team in buffers.calls:
                results = output, *last
                launches.add(Launch(function, block_address, team, results, (buffers, call)))
        return Result(output, tuple(last), tuple(saved or ()))

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`; states are [layers, B, n]."""
        buffers, layers, d = self._borrow(call), self._layers, cotangents.output
        blocks = buffers.blocks
        d_states = [*map(self._like_state, call.states)]
        lasts = [*map(contiguous_or_none, cotangents.last)]
        begin, end = [*map(address, d_states)], [*map(address_or_null, lasts)]
        for index, _, _, k, behind in self._states:
            block, layer = blocks[index], layers[index]
            block[layer.dst + k] = begin[k] + behind
            block[layer.dlast + k] = end[k] + behind if end[k] else 0
        d_inputs, d_weights = list[Tensor | None](), list[Tensor | None]()
        for index in reversed(range(len(layers))):
            layer, block = layers[index], blocks[index]
            inputs = (layers[index - 1].output_of(saved),) if index else call.inputs
            dy, t, row = self._no_dy, 0, 0
            if d is not None:
                dy, t, row = rows_of(d, layer.kernel.joined_dy)
            block[layer.dy : layer.dy + 3] = dy.data_ptr(), t, row
            tape = saved[layer.saved.stop - 1]
            if keep and layer.kernel.destructive:
                tape = tape.clone()
            sequences = saved[layer.saved.start :][: len(layer.sequences)]
            block[layer.st] = [*map(address, sequences)]
            block[layer.x], block[layer.tape] = [*map(address, inputs)], tape.data_ptr()
            d_inputs = [make and make(x) for make, x in zip(layer.like_inputs, inputs)]
            block[layer.dx], d = [*map(address_or_null, d_inputs)], d_inputs[0]
            pairs = zip(layer.like_weights, call.weights[layer.weights])
            grads = [None if make is None else make(weight) for make, weight in pairs]
            block[layer.dw] = [*map(address_or_null, grads)]
            d_weights[:0] = grads
            _, function, block_address, team = buffers.calls[index]
            stolen = function(block_address)
            if team:
                oversubscription.tell(stolen)
            if not keep:  # no second backward can read the tape, so the next forward may reuse it
                full = tape.untyped_storage().nbytes() == tape.nbytes
                layer.kernel.tapes.append(tape if full else full_storage(tape))
        self._end(buffers)
        return Gradients(tuple(d_inputs), tuple(d_states), tuple(d_weights))


def prepare(kernel: Kernel, members: Sequence[CKernel], call: Call) -> Kernel:
    """Make a kernel for calls of one kind, which set addresses only; ``kernel`` itself if arguments
    must be copied, or calls without a backward need much memory.

    Args:
        kernel, members, call: see :class:`PreparedKernel`.
    """
    training = {member.spec.training for member in members}
    single = len(members) == 1 or len(call.inputs) == 1
    scalar = any(member.results.scalar_output for member in members)
    if not call.sizes[2] or not single or scalar or len(training) > 1:
        return kernel
    result = PreparedKernel(kernel, members, call)
    serves = result.reads_in_place(call) and (
        result.intermediate_bytes <= MOST_BYTES or training == {True}
    )
    return result if serves else kernel
