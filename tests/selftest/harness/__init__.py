"""Judging, explaining and running."""
