"""Task `regression`: numbers predicted from sequences; arrays -> data -> model."""
