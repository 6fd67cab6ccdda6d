"""The modules of elman, their options, and the functions that swap torch's layers for them."""
