"""Threads and memory, of which a process has one supply."""
