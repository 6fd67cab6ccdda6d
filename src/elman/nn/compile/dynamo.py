"""torch's compiler takes elman's layers although they are subclasses of torch.nn's.

It refuses every ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` unless its option ``allow_rnn`` is set, and
with that it would unroll torch's own layers over time. So the option is set for ours alone, while
one of them is looked at; and only once the compiler has been imported, which takes a second.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_BUILDER = "torch._dynamo.variables.builder"


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the compiler call a function and take what it returns for a constant.

    What torch.compiler.assume_constant_result does, which would import the compiler now.
    """
    function._dynamo_marked_constant = True
    return function


class _Watch(MetaPathFinder):
    """Waits until a module is imported, then has a look at it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's usual spec, with something to be done after it has run."""
        if fullname != _BUILDER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_allow(module: ModuleType) -> None:
            run(module)
            _allow(module, self._kind)

        spec.loader.exec_module = run_and_allow
        return spec


@cache
def allow_compiling(kind: type) -> None:
    """Let torch's compiler look into modules of a kind; called when the first one is made."""
    if _BUILDER in sys.modules:
        _allow(sys.modules[_BUILDER], kind)
    else:
        sys.meta_path.insert(0, _Watch(kind))


def _allow(builder: Any, kind: type) -> None:
    made = getattr(builder, "VariableBuilder", None)
    wrap = getattr(made, "wrap_module", None)
    config: Any = sys.modules.get("torch._dynamo.config")
    if made is None or wrap is None or not hasattr(config, "allow_rnn"):
        return  # another version of torch: it may take them, or break its graph there

    def wrap_module(self: Any, value: Any) -> Any:
        if not isinstance(value, kind):
            return wrap(self, value)
        with config.patch(allow_rnn=True):
            return wrap(self, value)

    made.wrap_module = wrap_module
