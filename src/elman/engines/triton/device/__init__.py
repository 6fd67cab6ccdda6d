"""Launches, their limits, schedules and graphs; generated text as Triton functions."""
