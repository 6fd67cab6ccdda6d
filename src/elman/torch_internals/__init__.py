"""Undocumented parts of torch and Triton that elman uses, each with a fallback.

All of it is here and nowhere else. Names are looked up once, when elman is imported: where there is
one, it is bound as it is, so that calls go straight to torch's C. Where this torch lacks one, what
takes its place is public and slower, or more cautious, or an error that says so; ``LACKING`` lists
these names. ``tests/test_torch_internals.py`` tests each of both ways.

All names are in torch 2.13 and Triton 3.7.
"""

# ruff: noqa: F403  # the list of a file's names is its __all__, and no second one
from elman.torch_internals import autograd, compiler, memory, modes, operations, transforms
from elman.torch_internals.autograd import *
from elman.torch_internals.compiler import *
from elman.torch_internals.lookup import LACKING
from elman.torch_internals.memory import *
from elman.torch_internals.modes import *
from elman.torch_internals.operations import *
from elman.torch_internals.transforms import *

__all__ = ["LACKING"]
__all__ += autograd.__all__
__all__ += compiler.__all__
__all__ += memory.__all__
__all__ += modes.__all__
__all__ += operations.__all__
__all__ += transforms.__all__
