"""Compiled kernels and their calls."""
