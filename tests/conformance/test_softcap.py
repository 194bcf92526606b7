"""Chapter 20, softcap: to be written."""
