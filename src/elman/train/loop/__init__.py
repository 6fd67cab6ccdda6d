"""A run under way: configuration, task, optimizer, steps, validations, metrics."""
