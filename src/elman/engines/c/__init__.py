"""Engine c: a plan spelled as C, compiled once and cached; the whole time loop in one native
call."""
