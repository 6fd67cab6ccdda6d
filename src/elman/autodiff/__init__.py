"""The derivative as a graph: one VJP row per op, and the backward step they make."""
