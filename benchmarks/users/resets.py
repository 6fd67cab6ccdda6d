"""Recurrent layers whose states begin anew within a sequence, as agents' libraries part episodes.

- CleanRL 1.0 (``cleanrl/ppo_atari_lstm.py``, ``Agent.get_states``) and stable-baselines3-contrib
  2.4 (``common/recurrent/policies.py``, ``_process_sequence``): torch's layer called for each step,
  states multiplied by 1 - done before it. CleanRL has done before every call; stable-baselines3
  does so wherever any flag is set.
- pytorch-a2c-ppo-acktr-gail (``model.py``, ``_forward_gru``): torch's layer called for all steps
  between two at which any sample is reset.
- TorchRL 0.5 (``modules/tensordict_module/rnn.py``): episodes cut out, padded to the longest one
  and put back; of its own benchmark (``benchmarks/bench_gru_reset_backends.py``) are the sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project

LAYERS: dict[str, tuple[Callable[[int, int], nn.GRU | nn.LSTM], Callable[..., nn.Module]]] = {
    "gru": (nn.GRU, elman.nn.GRU),
    "lstm": (nn.LSTM, elman.nn.LSTM),
}
SHARE = 0.03  # of the steps begin an episode
State = Any  # a tensor, or a tuple of them


def flags(case: Case, source: torch.Generator) -> tuple[Tensor]:
    """[T, B]: 1 where an episode begins."""
    return ((torch.rand(case.T, case.B, generator=source) < SHARE).float(),)


def masked(state: State, flag: Tensor) -> State:
    """States [1, B, H], zero where a flag [B] is set."""
    keep = (1.0 - flag).view(1, -1, 1)
    return state * keep if isinstance(state, Tensor) else tuple(s * keep for s in state)


class Stepwise(nn.Module):
    """torch's layer for each step, its states masked before."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = LAYERS[case.cell][0](case.input_size, case.H)

    def start(self, x: Tensor) -> State:
        """Zero states."""
        zeros = x.new_zeros(1, x.shape[1], self.layer.hidden_size)
        return (zeros, zeros) if isinstance(self.layer, nn.LSTM) else zeros

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, Any]:
        """Outputs [T, B, H] and the last state."""
        state, outputs = self.start(x), []
        for row, flag in zip(x, done, strict=True):
            output, state = self.layer(row.unsqueeze(0), masked(state, flag))
            outputs.append(output)
        return torch.cat(outputs), state


class Split(Stepwise):
    """torch's layer for all steps between two at which any sample is reset."""

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, Any]:
        """See :class:`Stepwise`."""
        state, outputs = self.start(x), []
        cuts = [0, *((done[1:].any(1)).nonzero().flatten() + 1).tolist(), len(x)]
        for first, end in pairwise(cuts):
            output, state = self.layer(x[first:end], masked(state, done[first]))
            outputs.append(output)
        return torch.cat(outputs), state


class Padded(Stepwise):
    """Episodes of a GRU as sequences of their own, padded to the longest one."""

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, Any]:
        """See :class:`Stepwise`."""
        T, B = done.shape
        begins = done.bool().index_fill(0, torch.tensor([0]), True)
        starts = begins.T.reshape(-1).nonzero().flatten()  # of rows by sample, then by step
        lengths = torch.diff(starts, append=starts.new_tensor([T * B]))
        episodes = x.transpose(0, 1).reshape(T * B, -1).split(lengths.tolist())
        output = self.layer(pad_sequence([*episodes]))[0].transpose(0, 1)
        inside = torch.arange(output.shape[1]) < lengths.unsqueeze(1)
        rows = output[inside].view(B, T, -1).transpose(0, 1)
        return rows, rows[-1]  # padding went on from the states


class Fused(nn.Module):
    """elman's layer."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = LAYERS[case.cell][1](case.input_size, case.H)

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, Any]:
        """See :class:`Stepwise`."""
        return self.layer(x, reset=done)


RESETS = Project({"loop": Stepwise, "split": Split, "padded": Padded}, Fused, flags)
