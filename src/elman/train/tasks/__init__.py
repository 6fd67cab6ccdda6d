"""The kinds of training, a folder each and a row of `registry`."""
