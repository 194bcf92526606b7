"""Who claims to do it: the adapter contract and the implementations that the suite knows."""
