"""Products of matrices with weights: tiles, packed panels, sums for the weights' gradients."""
