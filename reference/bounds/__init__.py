"""Rounding bounds: how far each element of a correct answer may be from the reference."""
