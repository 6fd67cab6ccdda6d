"""A run on disk: its folder, checkpoints, resuming, what came out, and loading it."""
