"""Recurrences on all steps at once: scans, and Newton's iteration."""
