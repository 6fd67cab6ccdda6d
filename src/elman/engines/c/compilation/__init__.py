"""From C text to a loaded library: instruction sets, compilers, the cache."""
