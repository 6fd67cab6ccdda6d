"""Calls of modules: arguments are checked, the call is planned once and run many times."""
