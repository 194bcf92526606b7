"""Module classes as candidates: built, called, filled with weights and read."""
