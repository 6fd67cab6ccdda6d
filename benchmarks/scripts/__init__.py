"""Questions that are no suite: a program each."""
