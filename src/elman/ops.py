"""What a cell author may call inside a cell: ``from elman.ops import sigmoid, split, tanh``."""

from elman.frontend import activations, functions, matrices, reductions, spikes
from elman.frontend.activations import *  # noqa: F403  # one list per file, kept in its __all__
from elman.frontend.functions import *  # noqa: F403
from elman.frontend.matrices import *  # noqa: F403
from elman.frontend.reductions import *  # noqa: F403
from elman.frontend.spikes import *  # noqa: F403

__all__: list[str] = []
__all__ += functions.__all__
__all__ += activations.__all__
__all__ += matrices.__all__
__all__ += reductions.__all__
__all__ += spikes.__all__

for _name in __all__:
    globals()[_name].__module__ = __name__  # what pickles call them
