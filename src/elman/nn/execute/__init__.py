"""Layers and directions: which run together, and on which kernels."""
