"""Values and phases as Triton text."""
