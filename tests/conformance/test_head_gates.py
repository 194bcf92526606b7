"""Chapter 25, head gates: to be written."""
