"""Tests of my_attention."""
