"""Chapter 26, modules: to be written."""
