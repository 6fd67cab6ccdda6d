"""Formulas whose values are whole numbers times powers of two, computed exactly by any engine."""
