"""The modules that users make, what their options are, and what swaps torch's layers for them."""
