"""Generated text as Triton functions; it lives in memory, under a name that tells its digest."""

from __future__ import annotations

import hashlib
import linecache
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton import knobs

_made: dict[tuple[str, bool], Any] = {}


@cache
def _library(interpreted: bool) -> Any:
    """The functions that kernels call, for the compiler or for the interpreter."""
    spec = util.spec_from_file_location(
        f"elman_triton_library_{int(interpreted)}", Path(__file__).with_name("library.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(name: str, text: str) -> Any:
    """The function that a text defines under a name, made once; compiled or interpreted, as
    Triton's switch says now."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    interpreted = bool(knobs.runtime.interpret)
    key = f"{name}-{digest}"
    found = _made.get((key, interpreted))
    if found is None:
        file = f"<elman {key}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        lib = _library(interpreted)
        names = {"triton": triton, "tl": tl, "lib": lib, "__name__": f"elman_{digest}"}
        exec(compile(text, file, "exec"), names)
        found = _made[key, interpreted] = names[name]
    return found
