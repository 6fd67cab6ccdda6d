"""Generated text as Triton functions; it lives in memory, under a name that tells its digest."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import util
from pathlib import Path
from typing import Any
from weakref import finalize

import triton
import triton.language as tl
from triton import knobs

from elman.torch_internals import forget_triton_function


@cache
def _library(interpreted: bool) -> Any:
    """The functions that kernels call, for the compiler or for the interpreter."""
    spec = util.spec_from_file_location(
        f"elman_triton_library_{int(interpreted)}", Path(__file__).parents[1] / "library.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def indented(lines: Iterable[str]) -> list[str]:
    """The lines of a body."""
    return [f"    {line}" for line in lines]


def kernel(
    name: str, arguments: Sequence[str], lines: Iterable[str], unspecialised: Sequence[str] = ("T",)
) -> str:
    """The text of a kernel; ``unspecialised``: arguments for whose values it is not compiled
    anew."""
    decorator = f"@triton.jit(do_not_specialize={[*unspecialised]})"
    return "\n".join([decorator, f"def {name}({', '.join(arguments)}):", *indented(lines), ""])


def function(name: str, text: str) -> Any:
    """The function that a text defines under a name; compiled or interpreted, as Triton's switch
    says now."""
    return defined(name, text, bool(knobs.runtime.interpret))


@lru_cache(maxsize=1024)
def defined(name: str, text: str, interpreted: bool) -> Any:
    """The function that a text defines under a name. Its lines are known to Python, which Triton
    asks for them, for as long as the function lives."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = f"<elman {name}-{digest}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    lib = _library(interpreted)
    names = {"triton": triton, "tl": tl, "lib": lib, "__name__": f"elman_{digest}"}
    exec(compile(text, file, "exec"), names)
    forget_triton_function(f"elman_{digest}:{name}")
    finalize(names[name], linecache.cache.pop, file, None)
    return names[name]
