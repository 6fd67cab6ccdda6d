"""Kernels that are written by hand, of operations that are no plan's."""
