"""Chapter 22, sinks: to be written."""
