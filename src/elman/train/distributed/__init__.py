"""Several processes that train one model: how they start, and what they average."""
