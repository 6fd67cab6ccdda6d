"""A vanilla RNN that turns images by ten degrees a step.

    python examples/rotating_images.py --data cifar10_5000_1000.npz --picture turned.png
    python examples/rotating_images.py --data cifar10_5000_1000.npz --layers torch

The task of Han & Uboweja, "Parallel Training of Recurrent Neural Networks" (CMU 15-418/618, 2016,
section 2.4): at each step the network reads a grey image of 32 x 32 pixels and predicts the same
image turned by ten degrees anticlockwise, which is the input of the next step. Printed are the
loss over time, and of held-out images R² at each of the ten steps, in comparison with the input
repeated; the picture has inputs, predictions and true images.

--data has x_train and x_test, uint8 [N, 32, 32, 3], as of CIFAR-10.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import elman

SIDE, STEPS, DEGREES = 32, 10, 10.0


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images [N, SIDE, SIDE] turned anticlockwise, bilinear, zeros where nothing was."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(images), 2, 3)
    grid = functional.affine_grid(matrix, [len(images), 1, SIDE, SIDE], align_corners=False)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def sequences(pixels: np.ndarray) -> Tensor:
    """Grey images that turn, [STEPS + 1, N, SIDE * SIDE], of mean 0 and deviation 0.3."""
    grey = torch.from_numpy(pixels).float().mean(-1)
    grey = 0.3 * (grey - grey.mean()) / grey.std()
    return torch.stack([turned(grey, DEGREES * t).flatten(1) for t in range(STEPS + 1)])


class Rotation(nn.Module):
    """A tanh layer and a read-out: predictions [T, B, n] of images x [T, B, n]."""

    def __init__(self, layers: str, hidden: int) -> None:
        super().__init__()
        self.rnn = (elman if layers == "elman" else nn).RNN(SIDE * SIDE, hidden)
        self.readout = nn.Linear(hidden, SIDE * SIDE)

    def forward(self, x: Tensor) -> Tensor:
        """Read images; predict the next ones."""
        return self.readout(self.rnn(x)[0])


def explained(found: Tensor, true: Tensor) -> list[float]:
    """R² of images [T, N, n] at each step: 1 is exact, 0 the mean image."""
    off = (found - true).square().sum((1, 2))
    spread = (true - true.mean(1, keepdim=True)).square().sum((1, 2))
    return (1 - off / spread).tolist()


def draw(path: str, x: Tensor, found: Tensor, true: Tensor) -> None:
    """Three rows of one image: inputs, predictions, truth, a column a step."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, STEPS, figsize=(STEPS, 3.2))
    rows = {"input": x, "prediction": found, "truth": true}
    for row, (name, images) in enumerate(rows.items()):
        for t in range(STEPS):
            axes[row, t].imshow(
                images[t].view(SIDE, SIDE).numpy(), cmap="gray", vmin=-0.6, vmax=0.6
            )
            axes[row, t].set(xticks=[], yticks=[])
        axes[row, 0].set_ylabel(name)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=80)


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="an .npz, see above")
    parser.add_argument("--layers", choices=("elman", "torch"), default="elman")
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100, help="images")
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--picture", help="a file for the picture")
    options = parser.parse_args()
    torch.manual_seed(0)
    with np.load(options.data) as arrays:
        train, test = (sequences(arrays[name]) for name in ("x_train", "x_test"))
    model = Rotation(options.layers, options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        images = train[:, torch.randint(train.shape[1], (options.batch,))]
        optimizer.zero_grad()
        loss = functional.mse_loss(model(images[:-1]), images[1:])
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, options.steps // 5) == 0:
            print(
                f"step {step:5d}  {time.perf_counter() - start:5.1f} s  loss {loss:.5f}", flush=True
            )
    with torch.no_grad():
        found = model(test[:-1])
    for name, images in (("prediction", found), ("repeated input", test[:-1])):
        values = "  ".join(f"{value:.3f}" for value in explained(images, test[1:]))
        print(f"R² of {name:15} {values}")
    if options.picture:
        draw(options.picture, *(images[:, 0] for images in (test[:-1], found, test[1:])))


if __name__ == "__main__":
    main()
