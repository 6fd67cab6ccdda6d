"""Kernels written by hand, for operations without a plan."""
