"""What models learn, by which engine, and how the solvers of engine deer converge."""
