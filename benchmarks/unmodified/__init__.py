"""Programs with models that packages build, run by python and by `elman run`."""
