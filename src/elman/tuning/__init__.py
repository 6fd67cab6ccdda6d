"""Milliseconds of measuring before hours of training: engines side by side, and who won."""
