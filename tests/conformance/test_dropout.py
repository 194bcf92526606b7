"""Chapter 17, dropout: to be written."""
