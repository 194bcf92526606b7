"""One file for each chapter of the specification, one test for each clause."""
