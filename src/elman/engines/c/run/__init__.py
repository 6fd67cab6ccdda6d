"""Kernels that are loaded, and their calls."""
