"""Functions as candidates: arguments, layouts, masks and options, seen by their names and their effects."""
