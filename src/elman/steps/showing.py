"""``elman.draw``: of cells, of elman's modules, and of steps in torch's operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from elman import drawing
from elman.nn.modules.sequence import StepModule
from elman.steps.loop import Loop
from elman.torch_internals import pytree


def draw(
    subject: Any, path: str | Path | None = None, *, inputs: Any = None, **options: Any
) -> drawing.Drawing:
    """Draw the differentiable graph of a cell or of a step: forward above, backward below.

    Args:
        subject, path, options: of :func:`elman.drawing.draw`.
        inputs: of a step in torch's operations, what one call of it is given: ``(x, state)``.

    Raises:
        StepError: the step cannot be read as a formula.
        InputError: as :func:`elman.drawing.draw`.

    Example:
        >>> x, h = torch.randn(2, 8), torch.zeros(2, 16)
        >>> picture = elman.draw(torch.nn.GRUCell(8, 16), inputs=(x, h))
    """
    if inputs is None:
        return drawing.draw(subject, path, **options)
    loop: Any = subject if isinstance(subject, StepModule) else Loop(subject)
    x, state = inputs
    layer, *_ = loop.layer_call(pytree.tree_map_only(Tensor, lambda v: v.unsqueeze(0), x), state)
    return drawing.draw(layer, path, **options)
