"""A word-level language model: tied weights, a weight-dropped LSTM, truncated BPTT.

    python examples/word_language_model.py TRAIN.txt VALID.txt                 on elman's layers
    python examples/word_language_model.py TRAIN.txt VALID.txt --library torch on torch.nn's

The program is the same: `nn.LSTM` is torch's or elman's, and so are draws, masks and losses, but
for rounding. It prints the loss of every hundred steps, the perplexity and the words per second.

Weight drop: Merity et al. 2017, "Regularizing and Optimizing LSTM Language Models",
arXiv:1708.02182v1, section 2: the recurrent weights are dropped once per call, so that the same
mask serves all time steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import elman


class WeightDrop(nn.Module):
    """An LSTM whose recurrent weights are dropped anew before each call."""

    def __init__(self, layers: nn.Module, share: float) -> None:
        super().__init__()
        self.layers, self.share = layers, share
        self.names = [name for name, _ in layers.named_parameters() if "weight_hh" in name]
        for name in self.names:
            weight = getattr(layers, name)
            del layers._parameters[name]
            layers.register_parameter(f"{name}_raw", weight)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple]:
        """As the layers do."""
        for name in self.names:
            raw = getattr(self.layers, f"{name}_raw")
            setattr(self.layers, name, dropout(raw, self.share, self.training))
        return self.layers(x, state)


class Model(nn.Module):
    """Embedding, LSTM, and the embedding's own weights as read-out."""

    def __init__(self, library: str, words: int, size: int, layers: int, drop: float) -> None:
        super().__init__()
        kind = {"torch": nn.LSTM, "elman": elman.LSTM}[library]
        self.embedding = nn.Embedding(words, size)
        self.recurrent = WeightDrop(kind(size, size, layers), drop)
        self.readout = nn.Linear(size, words)
        self.readout.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, ids: Tensor, state: tuple | None) -> tuple[Tensor, tuple]:
        """Logits [T, B, words] and the state after the last step."""
        out, state = self.recurrent(self.embedding(ids), state)
        return self.readout(out), state


def rows(path: Path, vocabulary: dict[str, int], batch: int) -> Tensor:
    """A text as [steps, batch] word numbers; 0 stands for unknown words."""
    words = path.read_text(encoding="utf-8").replace("\n", " <eos> ").split()
    ids = torch.tensor([vocabulary.get(word, 0) for word in words])
    return ids[: len(ids) // batch * batch].view(batch, -1).t().contiguous()


def detached(state: tuple | None) -> tuple | None:
    """Cut off the graph of the step before."""
    return None if state is None else tuple(part.detach() for part in state)


def main() -> None:
    """Train for some steps, then measure the perplexity."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("--library", choices=("elman", "torch"), default="elman")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--drop", type=float, default=0.3)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--words", type=int, default=5000, help="the most frequent are known")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    counts = Counter(args.train.read_text(encoding="utf-8").replace("\n", " <eos> ").split())
    frequent = [word for word, _ in counts.most_common(args.words - 1)]
    vocabulary = {word: k for k, word in enumerate(frequent, 1)}
    train = rows(args.train, vocabulary, args.batch)
    model = Model(args.library, args.words, args.size, args.layers, args.drop)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    began, state = time.perf_counter(), None
    for step in range(args.steps):
        at = step * args.bptt % (len(train) - args.bptt - 1)
        x, y = train[at : at + args.bptt], train[at + 1 : at + args.bptt + 1]
        logits, state = model(x, detached(state))
        loss = cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{args.steps * args.batch * args.bptt / seconds:,.0f} words/s")

    model.eval()
    valid, total, state = rows(args.valid, vocabulary, 10), 0.0, None
    with torch.no_grad():
        for at in range(0, len(valid) - 1, args.bptt):
            y = valid[at + 1 : at + args.bptt + 1]
            logits, state = model(valid[at : at + len(y)], state)
            total += float(cross_entropy(logits.flatten(0, 1), y.flatten())) * len(y)
    print(f"perplexity in validation: {math.exp(total / (len(valid) - 1)):.2f}")


if __name__ == "__main__":
    main()
