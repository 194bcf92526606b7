"""Chapter 23, cache: to be written."""
