"""Engine deer: all time steps at once, by Newton iteration and an associative scan."""
