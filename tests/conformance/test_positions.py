"""Chapter 21, positions: to be written."""
