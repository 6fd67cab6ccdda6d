"""Every decision, written down: what leaves the loop, what is taped, which products join."""
