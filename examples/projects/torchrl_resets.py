"""TorchRL's recurrent modules: episodes cut out and padded, because they begin inside a batch.

    python examples/projects/torchrl_resets.py

TorchRL 0.5, ``modules/tensordict_module/rnn.py``: with ``is_init`` inside a sequence, episodes
become sequences of their own, padded to the longest one, and are put back afterwards. The same
layer of elman takes the mask: ``reset=``; nothing is cut, padded or computed for padding.
"""

from __future__ import annotations

import torch
from compare import compare, sizes
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import elman

FEATURES = 32  # of an observation


class Before(nn.Module):
    """As it is."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, units)

    def forward(self, x: Tensor, is_init: Tensor) -> tuple[Tensor, None]:
        """Outputs [T, B, H] of observations [T, B, I]; is_init [T, B] begins an episode."""
        T, B = is_init.shape
        begins = is_init.bool().index_fill(0, torch.tensor([0]), True)
        starts = begins.T.flatten().nonzero().flatten()
        lengths = torch.diff(starts, append=torch.tensor([T * B]))
        episodes = x.transpose(0, 1).reshape(T * B, -1).split(lengths.tolist())
        outputs = self.gru(pad_sequence([*episodes]))[0].transpose(0, 1)
        inside = torch.arange(outputs.shape[1]) < lengths.unsqueeze(1)
        return outputs[inside].view(B, T, -1).transpose(0, 1), None


class After(nn.Module):
    """One call."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.gru = elman.GRU(FEATURES, units)

    def forward(self, x: Tensor, is_init: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Before`; and the last states, of the last episodes."""
        return self.gru(x, reset=is_init)


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 128, 32, 512)  # its benchmark's B is 256
    is_init = (torch.rand(T, B) < 0.03).float()
    compare(Before(H), After(H), dict, torch.randn(T, B, FEATURES), is_init)
