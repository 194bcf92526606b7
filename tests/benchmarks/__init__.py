"""Benchmarks: how fast an implementation is, against a baseline in the same run and against the machine's own rates."""
