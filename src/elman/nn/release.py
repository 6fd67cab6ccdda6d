"""Memory and kernels that are kept between calls, given back."""

from __future__ import annotations

from elman import compiler
from elman.nn.compile import names
from elman.tuning import kernels


def release() -> None:
    """Free the memory and compiled kernels that elman caches and that are not in use.

    elman caches buffers for large results and for workspaces of kernels on the CPU (up to 512 MiB
    each), and up to 1024 compiled kernels, mostly of deleted modules. Modules keep the kernels in
    use; kernels and engine choices on disk stay. The next call allocates and loads what it needs.

    Example:
        >>> out, h = elman.GRU(8, 16)(torch.randn(5, 2, 8))
        >>> elman.release()
    """
    names.release()
    kernels.release()
    compiler.release()
