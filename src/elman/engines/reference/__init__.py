"""The oracle: the graph as written, evaluated by torch in a Python loop."""
