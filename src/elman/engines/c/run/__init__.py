"""Loaded kernels and their calls."""
