"""Chapter 16, grouped: to be written."""
