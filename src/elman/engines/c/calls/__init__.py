"""What a call hands to a kernel: its argument block, and notes of calls."""
