"""One direction of a program: the loop over steps, and the batched phases before and after it."""
