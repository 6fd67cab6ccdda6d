"""Functions in the place of those that models of transformers run where no kernel is for them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar

from torch import nn

from elman.functional.delta_rules import gated_delta_rule, kda
from elman.functional.state_spaces import mamba2_scan, selective_scan


def _stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that drops what a model passes along for others, as ``use_cache``."""
    names = inspect.signature(function).parameters

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        return function(*given, **{key: options[key] for key in options if key in names})

    return call


_RULE, _KDA = _stand_in(gated_delta_rule), _stand_in(kda)
STAND_INS: dict[str, Callable[..., Any]] = {  # by the name of what they replace
    "torch_chunk_gated_delta_rule": _RULE,
    "torch_recurrent_gated_delta_rule": _RULE,
    "chunk_kimi_delta_attention": _KDA,
    "recurrent_kimi_delta_attention": _KDA,
    "mamba2_chunk_scan": _stand_in(mamba2_scan),
    "mamba_selective_scan": _stand_in(selective_scan),
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
            if function is not None and value not in STAND_INS.values():
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
    _put_back(_places(model))
    return model


def uninstall_modules() -> None:
    """Put the functions of all modules of transformers back, whatever model had them replaced."""
    _put_back(_changed())


def replaced() -> list[str]:
    """The names of the functions in whose place ours are."""
    return sorted({name for names in _changed() for name in names[_KEPT]})


def _put_back(places: Iterable[dict[str, Any]]) -> None:
    for names in places:
        names.update(names.pop(_KEPT, {}))


def _changed() -> list[dict[str, Any]]:
    """The names of Python modules of transformers with functions of ours."""
    modules = [m for name, m in sys.modules.items() if name.startswith("transformers")]
    return [vars(module) for module in modules if _KEPT in vars(module)]


def _places(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Names of the layers, and of the modules of their classes."""
    layers = [*model.modules()]
    yield from (vars(layer) for layer in layers)
    for source in sorted({type(layer).__module__ for layer in layers}):
        if source.startswith("transformers"):  # and what it loads from elsewhere
            yield vars(sys.modules[source])
