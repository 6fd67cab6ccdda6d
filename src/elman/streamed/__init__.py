"""Models of whole sequences as modules of one step."""
