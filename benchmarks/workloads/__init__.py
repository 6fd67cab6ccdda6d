"""What is computed in a case where it is more than a layer: problems, and who computes them."""
