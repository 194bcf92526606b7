"""The judge: runs the cases of a clause, compares the answers with the reference, and counts."""
