"""Tasks `series` and `images`: whole sequences, classified; source -> data -> model."""
