"""An encoder and a decoder with packed input: words of a text, spelled backwards.

    python examples/spell_backwards.py TEXT.txt                  torch.nn's layers, accelerated
    python examples/spell_backwards.py TEXT.txt --library torch  torch.nn's layers as they are

The model is written with torch.nn alone: a bidirectional GRU reads the packed letters of a word,
another one writes. `elman.accelerate(model)` is all that changes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import elman

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, START = 0, len(LETTERS) + 1  # letters are 1 … 26


class Speller(nn.Module):
    """Letters in, letters out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(START + 1, size, padding_idx=PAD)
        self.encoder = nn.GRU(size, size, num_layers=2, bidirectional=True)
        self.bridge = nn.Linear(2 * size, size)
        self.decoder = nn.GRU(size, size)
        self.readout = nn.Linear(size, START + 1)

    def forward(self, words: Tensor, lengths: Tensor, targets: Tensor) -> Tensor:
        """Logits [T, B, letters] from words [T, B] and, shifted by one, what is to be written."""
        packed = pack_padded_sequence(self.embedding(words), lengths, enforce_sorted=False)
        _, states = self.encoder(packed)
        start = torch.tanh(self.bridge(torch.cat((states[-2], states[-1]), -1)))
        first = torch.full_like(targets[:1], START)
        inputs = self.embedding(torch.cat((first, targets[:-1])))
        out, _ = self.decoder(inputs, start.unsqueeze(0))
        return self.readout(out)


def letters(word: str) -> Tensor:
    """A word as numbers."""
    return torch.tensor([1 + LETTERS.index(letter) for letter in word])


def main() -> None:
    """Train on most words of a text, test on the others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--library", choices=("elman", "torch"), default="elman")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    spellings = sorted(set(args.text.read_text(encoding="utf-8").lower().split()))
    words = [word for word in spellings if len(word) > 2 and set(word) <= set(LETTERS)]
    order = torch.randperm(len(words)).tolist()
    test_words, train_words = [words[k] for k in order[:500]], [words[k] for k in order[500:]]
    model = Speller(args.size)
    if args.library == "elman":
        elman.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def batch(sample: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        forwards = pad_sequence([letters(word) for word in sample])
        backwards = pad_sequence([letters(word[::-1]) for word in sample])
        return forwards, torch.tensor([len(word) for word in sample]), backwards

    began = time.perf_counter()
    for step in range(args.steps):
        sample = [train_words[k] for k in torch.randint(len(train_words), (args.batch,)).tolist()]
        forwards, lengths, targets = batch(sample)
        logits = model(forwards, lengths, targets)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)
    print(f"{args.steps * args.batch / (time.perf_counter() - began):,.0f} words/s")

    model.eval()
    with torch.no_grad():
        forwards, lengths, targets = batch(test_words)
        right = (model(forwards, lengths, targets).argmax(-1) == targets) | (targets == PAD)
    share = float(right.all(0).float().mean())
    print(f"held-out words spelled backwards without a mistake: {share:.1%}")


if __name__ == "__main__":
    main()
