"""A call of a module: its arguments checked, planned once, run many times."""
