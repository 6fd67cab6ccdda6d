"""Kernels as functions that autograd, higher derivatives and torch.func go through."""
