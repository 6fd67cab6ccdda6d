"""Arrays of one sample: what torch's tensors are in a formula."""
