"""Step functions as packages and authors have them, run by Python loops and by elman's scan."""
