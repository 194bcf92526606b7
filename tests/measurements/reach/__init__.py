"""Reach: the conditions under which a defect could show, and those under which the suite would show it."""
