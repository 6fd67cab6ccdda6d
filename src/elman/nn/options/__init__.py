"""Options of a call: an argument, a check, a change of the step; one file each."""
