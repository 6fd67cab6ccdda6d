"""A step as a tape of torch's operations."""
