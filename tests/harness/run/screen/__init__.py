"""What a run prints: its progress, its first failure, its summary, and the commands that come next."""
