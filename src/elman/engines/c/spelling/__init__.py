"""Statements and values as C text."""
