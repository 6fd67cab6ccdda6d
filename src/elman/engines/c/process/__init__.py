"""What the process shares: threads and memory."""
