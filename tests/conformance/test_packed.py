"""Chapter 24, packed: to be written."""
