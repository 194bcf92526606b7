"""Chapter 18, returned: to be written."""
