"""The language of one time step for one sample: types, ops, graphs. No torch, no numpy."""
