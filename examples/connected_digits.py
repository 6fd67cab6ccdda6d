"""A recogniser of connected spoken digits: bidirectional GRU layers trained by CTC.

    python examples/connected_digits.py --data fsdd_600_300.npz                elman's layers
    python examples/connected_digits.py --data fsdd_600_300.npz --layers torch torch.nn's

Utterances are recordings of one speaker end to end, three to six digits in a random order; training
and test recordings are different ones. Features are log energies in bands of mel, every 10 ms; a
step is a pair of frames. CTC (Graves et al. 2006) aligns digits and steps; the best path is read
off without a language model. Printed are the word error rate (insertions, deletions and
replacements, by digits spoken) over time, and the floating-point operations of the products in a
second of whole training steps.

--data has audio_<half> (int16, all recordings end to end), length_<half>, digit_<half> and
speaker_<half> of the halves train and test, 8 kHz, as of the Free Spoken Digit Dataset.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import elman

RATE, WINDOW, HOP, BANDS, STACK = 8000, 200, 80, 40, 2  # Hz, samples, samples; frames of a step
DIGITS, BLANK = 10, 10


def mel_filters(bins: int) -> Tensor:
    """Triangles of equal width in mel [bins, BANDS]."""
    mel = np.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), BANDS + 2)
    edges = torch.tensor(700 * (10 ** (mel / 2595) - 1)) / (RATE / 2) * (bins - 1)
    at = torch.arange(bins)[:, None]
    up = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0).float()


def features(audio: Tensor) -> Tensor:
    """Log mel energies [T, BANDS * STACK] of samples, of mean 0 and deviation 1 in each band."""
    window = torch.hann_window(WINDOW)
    power = torch.stft(audio, 256, HOP, WINDOW, window, return_complex=True).abs().square()
    frames = (power.T @ mel_filters(len(power)) + 1e-6).log()
    frames = (frames - frames.mean(0)) / (frames.std(0) + 1e-3)
    return frames[: len(frames) // STACK * STACK].reshape(-1, BANDS * STACK)


@dataclass
class Recordings:
    """One half of the data: samples in [-1, 1], digits and speakers of each recording."""

    audio: list[Tensor]
    digits: np.ndarray
    speakers: np.ndarray

    @classmethod
    def load(cls, path: str, half: str) -> Recordings:
        """Read one half of a file."""
        with np.load(path) as arrays:
            ends = np.cumsum(arrays[f"length_{half}"], dtype=np.int64)[:-1]
            audio = np.split(arrays[f"audio_{half}"].astype(np.float32) / 32768, ends)
            digits, speakers = arrays[f"digit_{half}"], arrays[f"speaker_{half}"]
        return cls([torch.from_numpy(row) for row in audio], digits, speakers)

    def utterances(self, count: int, random: np.random.Generator) -> tuple[Tensor, ...]:
        """Features [T, B, n] padded with 0, their lengths [B], digits end to end, and how many
        each utterance has [B]."""
        rows, words = [], []
        for _ in range(count):
            (choices,) = np.nonzero(self.speakers == random.choice(self.speakers))
            picked = random.choice(choices, random.integers(3, 7))
            rows.append(features(torch.cat([self.audio[k] for k in picked])))
            words.append(torch.from_numpy(self.digits[picked].astype(np.int64)))
        lengths = torch.tensor([len(row) for row in rows])
        counts = torch.tensor([len(row) for row in words])
        return nn.utils.rnn.pad_sequence(rows), lengths, torch.cat(words), counts


class Recogniser(nn.Module):
    """Log probabilities [T, B, 11] of digits and of none at each step."""

    def __init__(self, layers: str, hidden: int, count: int) -> None:
        super().__init__()
        gru = (elman if layers == "elman" else nn).GRU
        self.layers = gru(BANDS * STACK, hidden, count, bidirectional=True)
        self.readout = nn.Linear(2 * hidden, DIGITS + 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read x [T, B, n]; what is behind the end of an utterance is not read."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], total_length=len(x))
        return self.readout(out).log_softmax(-1)

    def flop(self, steps: int) -> int:
        """Operations of the products of a training step, forward and backward."""
        return 6 * steps * sum(weight.numel() for weight in self.parameters() if weight.dim() == 2)


def best_paths(logs: Tensor, lengths: Tensor) -> list[list[int]]:
    """The digits of each utterance: the likeliest symbol of each step, repeats and blanks away."""
    paths = []
    for row, length in zip(logs.argmax(-1).T, lengths.tolist(), strict=True):
        path = torch.unique_consecutive(row[:length])
        paths.append(path[path != BLANK].tolist())
    return paths


def edits(path: Sequence[int], truth: Sequence[int]) -> int:
    """Insertions, deletions and replacements that make one sequence the other (Levenshtein)."""
    line = list(range(len(truth) + 1))
    for k, word in enumerate(path, 1):
        before, line[0] = line[0], k
        for j, other in enumerate(truth, 1):
            before, line[j] = line[j], min(line[j] + 1, line[j - 1] + 1, before + (word != other))
    return line[-1]


@torch.no_grad()
def word_error(model: Recogniser, batch: tuple[Tensor, ...]) -> float:
    """Edits of all utterances, by digits spoken."""
    x, lengths, words, counts = batch
    truths = [row.tolist() for row in words.split(counts.tolist())]
    paths = best_paths(model(x, lengths), lengths)
    return sum(map(edits, paths, truths)) / len(words)


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="an .npz, see above")
    parser.add_argument("--layers", choices=("elman", "torch"), default="elman")
    parser.add_argument("--hidden", type=int, default=128, help="units of a direction")
    parser.add_argument("--count", type=int, default=2, help="layers")
    parser.add_argument("--batch", type=int, default=16, help="utterances")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--test", type=int, default=100, help="utterances that are recognised")
    options = parser.parse_args()
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    train, test = (Recordings.load(options.data, half) for half in ("train", "test"))
    held_out = test.utterances(options.test, np.random.default_rng(1))
    model = Recogniser(options.layers, options.hidden, options.count)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    seconds, flop = 0.0, 0
    for step in range(1, options.steps + 1):
        x, lengths, words, counts = train.utterances(options.batch, random)
        began = time.perf_counter()
        optimizer.zero_grad()
        logs = model(x, lengths)
        loss = functional.ctc_loss(logs, words, lengths, counts, BLANK, zero_infinity=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step > 1:  # the first one compiles
            seconds += time.perf_counter() - began
            flop += model.flop(int(lengths.sum()))
        if step % max(1, options.steps // 10) == 0:
            print(
                f"step {step:4}  {seconds:6.1f} s  loss {loss.item():.3f}  "
                f"word error {word_error(model, held_out):.1%}",
                flush=True,
            )
    print(f"products at {flop / max(seconds, 1e-9) / 1e9:.3g} GFLOP/s of whole training steps")


if __name__ == "__main__":
    main()
