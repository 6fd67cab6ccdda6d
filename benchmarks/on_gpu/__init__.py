"""Cases, kernels and programs of the benchmark on a GPU."""
