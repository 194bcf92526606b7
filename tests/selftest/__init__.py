"""The suite's own tests, and what they share."""
