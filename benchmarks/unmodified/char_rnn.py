"""A character model, as in many tutorials."""

import sys
from pathlib import Path

import torch
from recorder import Laps
from torch.nn import LSTM, Embedding, Linear, Module
from torch.nn.functional import cross_entropy

text = Path(torch.nn.modules.rnn.__file__).read_text(encoding="utf-8")
chars = sorted({*text})
ids = torch.tensor([chars.index(char) for char in text])


class Net(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = Embedding(len(chars), 64), Linear(128, len(chars))
        self.rnn = LSTM(64, 128, num_layers=2)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


torch.manual_seed(0)
net = Net()
adam = torch.optim.Adam(net.parameters(), 3e-3)
laps = Laps()
for _ in range(int(sys.argv[1])):
    starts = torch.randint(len(ids) - 101, (16,))
    batch = torch.stack([ids[at : at + 101] for at in starts], 1)
    loss = cross_entropy(net(batch[:-1]).flatten(0, 1), batch[1:].flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()
    laps.step(loss)
