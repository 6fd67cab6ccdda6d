"""Memory and kernels that are kept between calls, given back."""

from __future__ import annotations

from elman import compiler
from elman.nn.compile import names
from elman.tuning import kernels


def release() -> None:
    """Free memory and compiled kernels that elman keeps for later calls and that nobody uses now.

    Kept are buffers for large results and for the work of kernels on the CPU (up to 512 MiB each),
    and up to 1024 compiled kernels, most of them of modules that are gone. Modules keep the kernels
    that they have chosen, compiled kernels stay in the cache on disk, and what has been measured
    remains known. The next call allocates and loads again what it needs.

    Example:
        >>> out, h = elman.GRU(8, 16)(torch.randn(5, 2, 8))
        >>> elman.release()
    """
    names.release()
    kernels.release()
    compiler.release()
