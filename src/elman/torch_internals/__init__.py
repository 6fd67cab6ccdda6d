"""Undocumented parts of torch and Triton that elman uses, each with a fallback.

All of it is here and nowhere else. Names are looked up once, when elman is imported: where there is
one, it is bound as it is, so that calls go straight to torch's C. Where this torch lacks one, what
takes its place is public and slower, or more cautious, or an error that says so; ``LACKING`` lists
these names. ``tests/test_torch_internals.py`` tests each of both ways.

All names are in torch 2.13 and Triton 3.7.
"""

from elman.torch_internals import autograd, compiler, memory, modes, operations, transforms
from elman.torch_internals.autograd import *  # noqa: F403  # one list per file, kept in its __all__
from elman.torch_internals.compiler import *  # noqa: F403
from elman.torch_internals.lookup import LACKING
from elman.torch_internals.memory import *  # noqa: F403
from elman.torch_internals.modes import *  # noqa: F403
from elman.torch_internals.operations import *  # noqa: F403
from elman.torch_internals.transforms import *  # noqa: F403

__all__ = ["LACKING"]
__all__ += autograd.__all__
__all__ += compiler.__all__
__all__ += memory.__all__
__all__ += modes.__all__
__all__ += operations.__all__
__all__ += transforms.__all__
