"""What detects how a callable is called."""
