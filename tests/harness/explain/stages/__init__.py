"""Attention as a list of named stages that can be edited one by one, and what mistakes make of a stage."""
