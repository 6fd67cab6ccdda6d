"""torch's operations (ATen) as operations of arrays: one row each.

A row is found by the operation's name, with its overload or without. It is called with arrays in
place of tensors, and with what else the operation was given. torch's rules of promotion are in the
types of the tape; a formula computes in floating-point numbers, bools are 1 and 0.
"""

from elman.steps.operations import creation, norms, pointwise, products, reductions, shapes

__all__ = ["creation", "norms", "pointwise", "products", "reductions", "shapes"]
