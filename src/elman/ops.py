"""What a cell author may call inside a cell: ``from elman.ops import sigmoid, split, tanh``."""

from elman.frontend.functions import *  # noqa: F403  # one list, kept in functions.__all__
from elman.frontend.functions import __all__ as __all__

for _name in __all__:
    globals()[_name].__module__ = __name__  # what pickles call them
