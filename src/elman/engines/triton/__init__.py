"""Programs spelled as Triton kernels: weights stay on chip over all time steps."""
