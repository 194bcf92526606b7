"""Chapter 27, conventions: to be written."""
