"""Chapters, cases and the numbers that are drawn for them."""
