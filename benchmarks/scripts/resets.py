"""What ``reset=`` costs, beside the ways in which people part episodes now.

    python -m benchmarks.scripts.resets [--out FILE] [--seconds 20]

A training step (forward and backward) of a GRU over a batch of rollouts in which 3 % of the steps
begin an episode, all ways alternating in one process:

- ``elman, reset``: ``elman.GRU(...)(x, h, reset=mask)``; ``elman, none``: the same without resets.
- ``split``: torch's layer between all steps at which any sample is reset, states masked there (as
  in pytorch-a2c-ppo-acktr-gail).
- ``loop``: torch's cell step by step, states masked at each (as in stable-baselines3-contrib).
- ``episodes``: episodes cut out, padded and packed as sequences of their own, torch's layer on
  those, and the results put back.
- ``episodes, elman``: the same with elman's layer.

Values and gradients of all ways are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import elman
from benchmarks.machine import facts
from elman.measuring.timing import quartiles, time_side_by_side

SHAPES = ((100, 32, 256), (128, 256, 512))
SHARE = 0.03
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def split(layer: nn.GRU) -> Way:
    """Between the steps at which any sample is reset."""

    def run(x: Tensor, h: Tensor, mask: Tensor) -> Tensor:
        cuts = [t for t in range(1, len(x)) if bool(mask[t].any())]
        outputs = []
        for first, end in zip([0, *cuts], [*cuts, len(x)], strict=True):
            h = h * (1.0 - mask[first]).view(1, -1, 1)
            out, h = layer(x[first:end], h)
            outputs.append(out)
        return torch.cat(outputs)

    return run


def loop(layer: nn.GRU, cell: nn.GRUCell) -> Way:
    """Step by step, on the same weights."""
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(layer, f"{name}_l0"))

    def run(x: Tensor, h: Tensor, mask: Tensor) -> Tensor:
        now, outputs = h[0], []
        for row, flags in zip(x, mask, strict=True):
            now = cell(row, now * (1.0 - flags).unsqueeze(1))
            outputs.append(now)
        return torch.stack(outputs)

    return run


def episodes(layer: Any) -> Way:
    """Episodes as sequences of their own."""

    def run(x: Tensor, h: Tensor, mask: Tensor) -> Tensor:
        T, B = mask.shape
        begins = mask.T.bool().clone()  # [B, T]
        begins[:, 0] = True
        sample, start = begins.nonzero(as_tuple=True)
        ends = torch.cat((start[1:], start.new_tensor([T])))
        ends[sample != torch.cat((sample[1:], sample.new_tensor([-1])))] = T
        lengths = ends - start
        steps = torch.arange(int(lengths.max()))
        inside = steps.unsqueeze(1) < lengths  # [longest, episodes]
        index = (start + steps.unsqueeze(1)).clamp(max=T - 1)
        padded = x[index, sample]
        first = h[0][sample] * ((start == 0) & (mask[0, sample] == 0)).unsqueeze(1)
        packed = pack_padded_sequence(padded, lengths, enforce_sorted=False)
        out = pad_packed_sequence(layer(packed, first.unsqueeze(0))[0])[0]
        t, k = inside.nonzero(as_tuple=True)
        rows = out.flatten(0, 1).index_select(0, t * len(sample) + k)
        whole = out.new_zeros(T * B, out.shape[-1])
        return whole.index_copy(0, index[t, k] * B + sample[k], rows).unflatten(0, (T, B))

    return run


def measured(T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    """One shape: seconds per training step of each way."""
    torch.manual_seed(0)
    layer, ours = nn.GRU(H, H), elman.GRU(H, H)
    ours.load_state_dict(layer.state_dict())
    x, h, dy = torch.randn(T, B, H), torch.randn(1, B, H), torch.randn(T, B, H)
    mask = (torch.rand(T, B) < SHARE).float()
    ways: dict[str, tuple[nn.Module, Way]] = {
        "elman, reset": (ours, lambda x, h, mask: ours(x, h, reset=mask)[0]),
        "elman, none": (ours, lambda x, h, mask: ours(x, h)[0]),
        "split": (layer, split(layer)),
        "loop": (layer, loop(layer, nn.GRUCell(H, H))),
        "episodes": (layer, episodes(layer)),
        "episodes, elman": (ours, episodes(ours)),
    }

    def step(module: nn.Module, way: Way) -> list[Tensor]:
        out = way(x, h, mask)
        return [out.detach(), *torch.autograd.grad(out, list(module.parameters()), dy)]

    want = step(*ways["loop"])
    for name, way in ways.items():
        if name != "elman, none":
            for got, value in zip(step(*way), want, strict=True):
                off = float((got - value).norm() / value.norm())
                assert off < 1e-4, f"{name} is off by {off}"
    runs = {name: (lambda way=way: step(*way)) for name, way in ways.items()}
    taken = {
        name: quartiles(samples.steady).median
        for name, samples in time_side_by_side(runs, seconds, 2).items()
    }
    own = taken["elman, reset"]
    theirs = min(taken[name] for name in ("split", "loop", "episodes"))
    return {
        "shape": [T, B, H],
        "share": SHARE,
        "seconds": taken,
        "cost": own / taken["elman, none"] - 1.0,
        "times the best other": theirs / own,
    }


def main() -> None:
    """Print a row per shape, and append it to a file."""
    parser = argparse.ArgumentParser(description="What reset= costs.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for shape in SHAPES:
        row = measured(*shape, options.seconds) | {"machine": facts()}
        text = {name: f"{value * 1e3:.1f} ms" for name, value in row["seconds"].items()}
        print(row["shape"], text)
        print(f"  cost {row['cost']:.1%}, {row['times the best other']:.2f}x the best other way")
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
