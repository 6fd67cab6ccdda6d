"""Argument blocks of kernels, and notes of calls."""
