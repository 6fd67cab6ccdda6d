"""Generated text: what the model has learned, for eyes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from elman.errors import RunError, diagnostic
from elman.train.text.vocabulary import Vocabulary


@torch.no_grad()
def generate(
    model: nn.Module,
    vocabulary: Vocabulary,
    length: int,
    temperature: float,
    seed: int,
    prompt: str = "\n",
) -> str:
    """Draw tokens from a language model, one after the other.

    Args:
        model: logits, state = model(ids [T, 1], state).
        length: tokens to draw after the prompt.
        temperature: divides the logits; 0 takes the likeliest token.
        seed: of the draws.
        prompt: what the model reads first.
    """
    device = next(model.parameters()).device
    draws = torch.Generator().manual_seed(seed)
    ids = torch.from_numpy(vocabulary.encode(prompt).astype(np.int64))
    drawn: list[int] = []
    state = None
    was_training = model.training
    model.eval()
    for _ in range(length):
        logits, state = model(ids[:, None].to(device), state)
        last = logits[-1, 0].double().cpu()
        last[0] = -torch.inf  # the unknown token is not text
        ids = pick(last, temperature, draws)
        drawn.append(int(ids))
    model.train(was_training)
    return vocabulary.decode(np.array(drawn, dtype=np.int64))


def pick(logits: torch.Tensor, temperature: float, draws: torch.Generator) -> torch.Tensor:
    """Draw one number, [1], from logits [V].

    Raises:
        RunError: some are not finite, or not when the temperature divides them.
    """
    if temperature == 0:
        return logits.argmax()[None]
    chances = torch.softmax(logits / temperature, 0)
    if not chances.isfinite().all():
        details = [("temperature", f"{temperature:g}")]
        text = "no token can be drawn: the model's outputs are not finite"
        raise RunError(diagnostic(text, details, "weights of an earlier checkpoint"))
    return torch.multinomial(chances, 1, generator=draws)
