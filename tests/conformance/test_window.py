"""Chapter 19, window: to be written."""
