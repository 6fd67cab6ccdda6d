"""Kernels that are compiled, and their calls."""
