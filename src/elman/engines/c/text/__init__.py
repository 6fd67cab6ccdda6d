"""The text of a kernel, from its plan."""
