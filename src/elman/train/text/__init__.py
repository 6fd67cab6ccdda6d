"""Task `text`: a character model; corpus -> vocabulary -> stream."""
