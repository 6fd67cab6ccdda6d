"""A sequence that arrives in chunks: ``elman.Stream``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.engines.time_shards import CUT, shards_time
from elman.errors import EngineError, InputError
from elman.nn.layout.dense import is_dense
from elman.nn.modules.sequence import SequenceModule, StepModule
from elman.torch_internals import pytree


class Stream:
    """Run a module over a sequence that arrives in chunks, and keep its state in between.

    Use it for real-time audio, robots and simulators. Chunks can have any number of steps; the
    outputs equal those of one call with the whole sequence. Autograd records nothing. Put a module
    with dropout into ``eval()`` first. The first chunk of each size takes longer, since an engine
    is chosen for it: run one before, or name the engine (``engine="c"``).

    Args:
        module: a unidirectional :class:`elman.Recurrent`, ``RNN``, ``GRU``, ``LSTM`` or ``Loop``.
        state: the initial state, restored by :meth:`reset`, in the form that the module takes:
            [layers, B, H] per state, or a list. Default: the module's default initial state.
        static [B, S]: static inputs, in the form that the module takes.

    Raises:
        InputError: the module is of another kind, or bidirectional.

    Example:
        >>> net = elman.GRU(4, 8).eval()
        >>> stream = elman.Stream(net)
        >>> x = torch.randn(10, 2, 4)
        >>> out = torch.cat([stream(x[:3]), stream(x[3:9]), stream(x[9:])])
        >>> torch.allclose(out, net(x)[0], atol=1e-6)
        True
        >>> stream.state.shape
        torch.Size([1, 2, 8])
        >>> stream.reset([1])  # start a new sequence for sample 1
        >>> stream.state[0, 1].count_nonzero().item()
        0
    """

    def __init__(self, module: Any, state: Any = None, *, static: Any = None) -> None:
        if not isinstance(module, (SequenceModule, StepModule)):
            raise InputError(
                f"Stream takes a recurrent module, not {type(module).__name__}",
                "elman.Stream(model.rnn); elman.accelerate(model) makes torch's layers elman's",
            )
        if bool(getattr(module, "bidirectional", False)):
            raise InputError("a bidirectional module has no stream: it needs the whole sequence")
        if static is not None and isinstance(module, SequenceModule):
            module.runtime.signature.check_static()
        self.module: Any = module
        self.static = static
        self.state = self._start = state

    @torch.no_grad()
    def __call__(self, x: Any, *, reset: Any = None, mask: Any = None) -> Any:
        """Run the next steps.

        Args:
            x [T, B, I]: the chunk, in the module's layout: [B, T, I] with ``batch_first``, [T, I]
                unbatched; a tuple if the cell has several inputs.
            reset [T, B]: not 0 where a sequence begins: before that step the state becomes the
                default initial state.
            mask [T, B]: 0 where a step does not count, as for the module's ``forward``.

        Returns:
            out [T, B, H]: the last layer's output at each step; a tuple if the cell has several.

        Raises:
            InputError: the chunk is packed.
            InputError, ShapeError, EngineError: see the module's ``forward``.
        """
        if shards_time():
            raise EngineError(f"{CUT} are no streams: each process calls the module itself")
        inputs = x if isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence) else (x,)
        if any(isinstance(part, PackedSequence) for part in inputs):
            raise InputError(
                "the chunks of a stream are tensors, not packed sequences",
                "a Stream for the sequences of one length, or one for each sequence",
            )
        options = {"static": self.static, "reset": reset, "mask": mask}
        call_options = {name: value for name, value in options.items() if value is not None}
        out, self.state = self.module(x, self.state, **call_options)
        return out

    def reset(self, samples: Any = None) -> None:
        """Restore the initial state of all samples, or of some.

        Args:
            samples [B]: a mask, or [n] indices; all samples if omitted.

        Raises:
            InputError: there is no batch, or there are no such samples.
        """
        if samples is None:
            self.state = self._start
        elif self.state is not None and isinstance(self.module, StepModule):
            states, form = pytree.tree_flatten(self.state)
            starts = [torch.zeros_like(v) for v in states]
            starts = starts if self._start is None else pytree.tree_leaves(self._start)
            self.state = form.unflatten(_restarted(states, starts, samples, 0))
        elif self.state is not None:
            signature = self.module.runtime.signature
            states = signature.form.arrays(self.state)
            if states[0].dim() != 2 + len(self.module.runtime.state_sizes[0]):
                raise InputError("an unbatched stream has no samples: reset() begins it anew")
            starts = [torch.zeros_like(value) for value in states]
            if self._start is not None:
                starts = signature.form.arrays(self._start)
            elif initial := self.module._initial_beside(states):
                starts = [value.expand_as(state) for value, state in zip(initial, states)]
            self.state = signature.form.nest(_restarted(states, starts, samples, 1))


def _restarted(
    states: Sequence[Tensor], starts: Sequence[Tensor], samples: Any, axis: int
) -> list[Tensor]:
    """States in which some samples, along an axis, are replaced by their initial states."""
    index = _sample_index(samples, states[0].shape[axis], states[0].device)
    states = [state.clone() for state in states]
    for state, start in zip(states, starts, strict=True):
        state.movedim(axis, 0)[index] = start.movedim(axis, 0)[index]
    return states


def _sample_index(samples: Any, batch: int, device: torch.device) -> Tensor:
    """A mask [B] or indices of samples as a tensor. Raises InputError."""
    problem = ""
    try:
        index = torch.as_tensor(samples, device=device)
    except (TypeError, ValueError, RuntimeError):
        index = None
    if index is None or not is_dense(index):
        kind = type(samples).__name__
    else:
        kind = f"{str(index.dtype).removeprefix('torch.')} {list(index.shape)}"
        if index.dtype in (torch.bool, torch.uint8):  # torch takes both for masks
            if index.shape == (batch,):
                return index.bool()
        elif index.shape == (0,):  # an empty list is one of floats
            return index.long()
        elif not (index.is_floating_point() or index.is_complex()) and index.dim() <= 1:
            numbers = index.long().view(-1)
            wrong = numbers[(numbers < -batch) | (numbers >= batch)]
            if not len(wrong):
                return numbers
            problem = f"there is no sample {wrong[0].item()} among {batch}"
    raise InputError(
        f"samples to reset must be indices of samples or a mask [{batch}] of bool, not {kind}",
        "stream.reset([0]), or stream.reset(done != 0) with done [B]",
        index=problem,
    )
