"""Functions in the place of those that models of transformers run where no kernel is for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import nn

from elman.functional.delta_rules import gated_delta_rule, kda
from elman.functional.state_spaces import mamba2_scan, selective_scan

STAND_INS: dict[str, Callable[..., Any]] = {  # by the name of what they replace
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "torch_recurrent_gated_delta_rule": gated_delta_rule,
    "chunk_kimi_delta_attention": kda,
    "recurrent_kimi_delta_attention": kda,
    "mamba2_chunk_scan": mamba2_scan,
    "mamba_selective_scan": selective_scan,
}
_KEPT = "_elman_kept"

Model = TypeVar("Model", bound=nn.Module)


def install(model: Model) -> Model:
    """Make a model of Hugging Face's transformers run the functions of this page.

    Models with Mamba, Mamba-2, gated delta rules or Kimi delta attention run functions of torch's
    operations on a CPU, which loop over steps or chunks. They are replaced in the Python modules
    of the model's classes, hence for all models of these classes in the process, and in the
    layers that keep them as attributes. Parameters and results stay.

    Args:
        model: of transformers; others are not changed.

    Returns:
        The model itself.

    Example:
        >>> elman.functional.install(torch.nn.Linear(2, 2))
        Linear(in_features=2, out_features=2, bias=True)
    """
    for names in _places(model):
        for key, value in [*names.items()]:
            function = STAND_INS.get(getattr(value, "__name__", ""))
            if function is not None and value is not function:
                names.setdefault(_KEPT, {})[key] = value
                names[key] = function
    return model


def uninstall(model: Model) -> Model:
    """Undo :func:`install`: put the functions of transformers back.

    Args:
        model: of the same classes.

    Returns:
        The model itself.
    """
    for names in _places(model):
        names.update(names.pop(_KEPT, {}))
    return model


def _places(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Names of the layers, and of the modules of their classes."""
    layers = [*model.modules()]
    yield from (vars(layer) for layer in layers)
    for source in sorted({type(layer).__module__ for layer in layers}):
        if source.startswith("transformers"):  # and what it loads from elsewhere
            yield vars(sys.modules[source])
