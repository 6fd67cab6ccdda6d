"""All decisions that need no engine: values outside the loop, the tape, joined products."""
