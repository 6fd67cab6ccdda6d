"""Task `text`: a language model of characters or words; corpus -> vocabulary -> stream."""
