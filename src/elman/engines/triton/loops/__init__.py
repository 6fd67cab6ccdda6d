"""One direction of a program: the loop over steps, and what runs on all rows before and after."""
