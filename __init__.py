"""Tells whether an attention implementation is right, and which mistake it makes if not."""
