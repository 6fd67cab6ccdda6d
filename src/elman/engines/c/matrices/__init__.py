"""Passes over matrices per sample."""
