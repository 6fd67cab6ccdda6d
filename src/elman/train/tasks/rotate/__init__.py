"""Task `rotate`: the next image of one that is turned step by step; images -> data -> model."""
