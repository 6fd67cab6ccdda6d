"""stable-baselines3-contrib's recurrent policies: a loop over steps because episodes begin inside.

    python examples/projects/sb3_recurrent.py

sb3-contrib 2.7, ``common/recurrent/policies.py``, ``_process_sequence``: as soon as any step of a
batch begins an episode, torch's layer is called step by step, its states masked before each. The
same layer of elman takes the mask: ``reset=``. State dicts are the same.
"""

from __future__ import annotations

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman

FEATURES = 64  # of an observation
States = tuple[Tensor, Tensor]


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, units)

    def forward(self, x: Tensor, states: States, starts: Tensor) -> tuple[Tensor, States]:
        """Outputs [T, B, H] and last states; starts [T, B] is 1 where an episode begins."""
        if bool((starts == 0.0).all()):
            return self.lstm(x, states)
        outputs = []
        for features, start in zip(x, starts, strict=True):
            keep = (1.0 - start).view(1, -1, 1)
            output, states = self.lstm(features.unsqueeze(0), (keep * states[0], keep * states[1]))
            outputs.append(output)
        return torch.cat(outputs), states


class After(nn.Module):
    """One call."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.lstm = elman.LSTM(FEATURES, units)

    def forward(self, x: Tensor, states: States, starts: Tensor) -> tuple[Tensor, States]:
        """See :class:`Before`."""
        return self.lstm(x, states, reset=starts)


class FromZeros(nn.Module):
    """A policy that begins with zeros."""

    def __init__(self, policy: Before | After) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, x: Tensor, starts: Tensor) -> tuple[Tensor, States]:
        """See :class:`Before`."""
        zeros = x.new_zeros(1, x.shape[1], self.policy.lstm.hidden_size)
        return self.policy(x, (zeros, zeros), starts)


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 128, 8, 256)
    starts = (torch.rand(T, B) < 0.03).float()
    compare(FromZeros(Before(H)), FromZeros(After(H)), dict, torch.randn(T, B, FEATURES), starts)
