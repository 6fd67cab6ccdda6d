"""Measurements of a case: training steps, memory, first steps, phases, operators, limits."""
