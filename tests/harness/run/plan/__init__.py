"""What a run checks, of which implementations, and in which order."""
