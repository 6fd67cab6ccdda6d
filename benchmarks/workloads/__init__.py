"""Problems beyond a single layer, and their contestants."""
