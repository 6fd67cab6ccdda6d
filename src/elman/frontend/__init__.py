"""From a cell's text to a graph: signatures, tracing, what a cell author may call."""
