"""Benchmarks, verification and choice of engines for a call."""
