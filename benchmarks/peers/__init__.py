"""Other libraries as contestants, and the loops and steps that people write in torch."""
