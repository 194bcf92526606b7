"""Measurements of the suite itself; each takes minutes and writes a page of the documentation."""
