"""CleanRL's recurrent PPO: its agent's loop over steps is one call.

    python examples/projects/cleanrl_ppo.py

CleanRL 1.0, ``ppo_atari_lstm.py``, ``Agent.get_states``: an LSTM called for each step of a rollout,
its states multiplied by 1 - done. Here a training step of the agent on a minibatch of frames: 128
steps of 2 environments. What it is in the whole update, ``python -m benchmarks users`` measures.
"""

from __future__ import annotations

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman

PIXELS, FEATURES, ACTIONS = 84, 512, 4


class Agent(nn.Module):
    """Convolutions, an LSTM, a policy and a value."""

    def __init__(self, lstm: nn.LSTM | elman.LSTM, units: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64 * 7 * 7, FEATURES), nn.ReLU()),
        )
        self.lstm = lstm
        self.heads = nn.Linear(units, ACTIONS + 1)

    def features(self, x: Tensor, done: Tensor) -> Tensor:
        """[T, B, 512] of frames [T, B, pixels]."""
        frames = x.view(-1, 1, PIXELS, PIXELS)
        return self.network(frames / 255.0).view(*done.shape, -1)

    def zeros(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The states [1, B, H] to begin with."""
        h = x.new_zeros(1, x.shape[1], self.lstm.hidden_size)
        return h, h


class Before(Agent):
    """As it is."""

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, None]:
        """Logits and values [T, B, 5] of frames; done [T, B] begins an episode."""
        hidden, state = [], self.zeros(x)
        for row, flag in zip(self.features(x, done), done, strict=True):
            keep = (1.0 - flag).view(1, -1, 1)
            output, state = self.lstm(row.unsqueeze(0), (keep * state[0], keep * state[1]))
            hidden.append(output)
        return self.heads(torch.cat(hidden)), None


class After(Agent):
    """The loop is one call."""

    def forward(self, x: Tensor, done: Tensor) -> tuple[Tensor, None]:
        """See :class:`Before`."""
        hidden, _ = self.lstm(self.features(x, done), self.zeros(x), reset=done)
        return self.heads(hidden), None


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 128, 2, 128)
    frames = (256 * torch.rand(T, B, PIXELS * PIXELS)).floor()
    before, after = Before(nn.LSTM(FEATURES, H), H), After(elman.LSTM(FEATURES, H), H)
    compare(before, after, dict, frames, (torch.rand(T, B) < 0.03).float())
