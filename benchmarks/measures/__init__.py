"""What is measured of a case: training steps, memory, first steps, phases, tapes, refusals."""
