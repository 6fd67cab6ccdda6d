"""Classify whole sequences: worms by their motion, spoken digits by raw samples, images by pixels.

    python examples/classify.py worms  DATA/ucr-worms
    python examples/classify.py digits DATA/fsdd --unseen
    python examples/classify.py mnist  DATA/mnist --minutes 12
    python examples/classify.py worms  DATA/ucr-worms --engine deer --cell paragru

Prints one line per seed and the mean, and writes the loss of every epoch beside it (``--out``).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import elman
import elman.nn


@dataclass(frozen=True)
class Split:
    """Sequences of one half: x [N, T, I], their lengths [N] and classes [N]."""

    x: Tensor
    lengths: Tensor
    y: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Some sequences [T, B, I], cut to the longest."""
        lengths = self.lengths[rows]
        return self.x[rows, : int(lengths.max())].transpose(0, 1), lengths, self.y[rows]


def worms(folder: Path, stride: int) -> tuple[Split, Split]:
    """UCR Worms: one value a second, 900 of them, some to a step; five kinds of worms."""
    halves = []
    for name in ("TRAIN", "TEST"):
        table = torch.from_numpy(np.loadtxt(folder / f"Worms_{name}.tsv", dtype=np.float32))
        x = table[:, 1:].unflatten(1, (-1, stride))
        halves.append(Split(x, torch.full((len(x),), x.shape[1]), table[:, 0].long() - 1))
    return halves[0], halves[1]


def digits(folder: Path, stride: int, unseen: int | None) -> tuple[Split, Split]:
    """Free Spoken Digits: raw samples, some to a step; tested on new recordings or speakers."""
    data = np.load(next(folder.glob("*.npz")))
    parts = []
    for half in ("train", "test"):
        audio = data[f"audio_{half}"].astype(np.float32) / 32768.0
        ends = np.cumsum(data[f"length_{half}"])
        pieces = np.split(audio, ends[:-1])
        parts.append((pieces, data[f"digit_{half}"], data[f"speaker_{half}"]))
    if unseen is not None:
        pieces = [*parts[0][0], *parts[1][0]]
        y, who = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
        inside = who != unseen
        parts = [
            ([p for p, own in zip(pieces, keep) if own], y[keep], who[keep])
            for keep in (inside, ~inside)
        ]
    return _waves(*parts[0][:2], stride), _waves(*parts[1][:2], stride)


def _waves(pieces: list[np.ndarray], y: np.ndarray, stride: int) -> Split:
    lengths = torch.tensor([max(1, len(piece) // stride) for piece in pieces])
    x = torch.zeros(len(pieces), int(lengths.max()), stride)
    for row, (piece, length) in enumerate(zip(pieces, lengths.tolist())):
        wave = torch.from_numpy(piece[: length * stride])
        wave = wave / wave.square().mean().sqrt().clamp_min(1e-6)
        x[row, :length].view(-1)[: len(wave)] = wave
    return Split(x, lengths, torch.from_numpy(y.astype(np.int64)))


def mnist(folder: Path, stride: int) -> tuple[Split, Split]:
    """MNIST, pixel by pixel unless a stride says otherwise."""
    data = np.load(next(folder.glob("*.npz")))

    def half(name: str) -> Split:
        pixels = torch.from_numpy(data[f"x_{name}"]).float().flatten(1) / 255
        x = pixels.unflatten(1, (-1, stride))
        y = torch.from_numpy(data[f"y_{name}"].astype(np.int64))
        return Split(x, torch.full((len(x),), x.shape[1]), y)

    return half("train"), half("test")


class Classifier(nn.Module):
    """Recurrent layers, the mean and the last of their outputs, one linear layer."""

    def __init__(self, args: argparse.Namespace, inputs: int, classes: int) -> None:
        super().__init__()
        cell = getattr(elman.cells, args.cell)
        self.rnn = elman.Recurrent(
            cell,
            inputs,
            args.hidden,
            args.layers,
            dropout=args.dropout if args.layers > 1 else 0.0,
            heads=args.heads,
            engine=args.engine,
        )
        self.drop = nn.Dropout(args.dropout)
        self.out = nn.Linear(2 * args.hidden, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Logits [B, classes] of x [T, B, I]."""
        h, _ = self.rnn(x)
        inside = torch.arange(len(x))[:, None] < lengths
        mean = (h * inside.unsqueeze(-1)).sum(0) / lengths.unsqueeze(-1)
        last = h[lengths - 1, torch.arange(h.shape[1])]
        return self.out(self.drop(torch.cat((mean, last), -1)))


def accuracy(model: Classifier, data: Split, size: int) -> float:
    """Share of sequences that are classified right."""
    model.eval()
    right = 0
    with torch.no_grad():
        for rows in torch.arange(len(data.y)).split(size):
            x, lengths, y = data.batch(rows)
            right += int((model(x, lengths).argmax(-1) == y).sum())
    model.train()
    return right / len(data.y)


def train(args: argparse.Namespace, seed: int, fit: Split, test: Split) -> dict[str, object]:
    """One run: the loss of every epoch, the accuracy on held-out data at its end."""
    torch.manual_seed(seed)
    model = Classifier(args, fit.x.shape[-1], int(fit.y.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=args.decay)
    began, losses, steps = time.monotonic(), [], 0
    source = torch.Generator().manual_seed(seed)
    for epoch in range(args.epochs):
        share = max(epoch / args.epochs, (time.monotonic() - began) / (60 * args.minutes))
        if share >= 1:
            break
        total = 0.0
        for rows in torch.randperm(len(fit.y), generator=source).split(args.batch):
            for group in optimizer.param_groups:
                group["lr"] = (
                    args.lr * min(1.0, (steps + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * share))
                )
            x, lengths, y = fit.batch(rows)
            if args.noise:
                x = x + args.noise * torch.randn(x.shape, generator=source)
            loss = cross_entropy(model(x, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(rows)
            steps += 1
        losses.append(total / len(fit.y))
        if args.verbose:
            print(
                f"  epoch {epoch}: loss {losses[-1]:.4f}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    counted = elman.nn.counters(model)
    found: dict[str, object] = {
        "task": args.task,
        "cell": args.cell,
        "engine": args.engine,
        "seed": seed,
        "accuracy": accuracy(model, test, args.batch),
        "seconds": round(time.monotonic() - began, 1),
        "epochs": len(losses),
        "losses": losses,
        "calls": counted.get("calls", 0),
        "fallbacks": counted.get("fallbacks", 0),
    }
    return found


USUAL = {  # task -> options that differ from the parser's defaults
    "worms": {"stride": 5, "hidden": 64, "batch": 32, "epochs": 150, "lr": 5e-3, "noise": 0.1},
    "digits": {"stride": 16, "hidden": 96, "batch": 50, "epochs": 40, "lr": 3e-3, "noise": 0.05},
    "mnist": {"stride": 1, "hidden": 128, "batch": 100, "epochs": 12, "lr": 2e-3},
}


def main() -> None:
    """Read the options, train all seeds, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=USUAL)
    parser.add_argument("folder", type=Path, help="where the task's files lie")
    parser.add_argument("--unseen", type=int, nargs="?", const=0, help="test on this speaker")
    parser.add_argument("--stride", type=int, help="values to a step")
    parser.add_argument("--cell", default="gru")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.0, help="added to inputs in training")
    parser.add_argument("--decay", type=float, default=1e-2)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--minutes", type=float, default=15.0, help="of training at most, per seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append one JSON line per seed to this file")
    parser.add_argument("--verbose", action="store_true")
    task = parser.parse_known_args()[0].task
    parser.set_defaults(**USUAL[task])
    args = parser.parse_args()
    if args.task == "digits":
        fit, test = digits(args.folder, args.stride, args.unseen)
    else:
        fit, test = {"worms": worms, "mnist": mnist}[args.task](args.folder, args.stride)
    counts = test.y.bincount()
    chance = float(counts.max()) / len(test.y)
    print(f"{args.task}: {len(fit.y)} to learn from, {len(test.y)} held out")
    found = []
    for seed in range(args.seeds):
        run = train(args, seed, fit, test)
        found.append(run)
        print(
            f"seed {seed}: {run['accuracy']:.1%} (largest class {chance:.1%}), "
            f"{run['epochs']} epochs, {run['seconds']} s, "
            f"{run['fallbacks']} of {run['calls']} calls fell back",
            flush=True,
        )
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(run) + "\n")
    mean = sum(float(run["accuracy"]) for run in found) / len(found)
    print(f"mean of {len(found)} seeds: {mean:.1%}")


if __name__ == "__main__":
    main()
