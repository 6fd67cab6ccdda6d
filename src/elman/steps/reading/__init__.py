"""A tape as the formula of a cell."""
