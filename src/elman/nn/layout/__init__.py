"""Layouts of a call's tensors: their checks, packing, and conversion to one inner layout."""
