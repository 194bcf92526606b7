"""What explains a failure: the mistake that it looks like, the smallest case, a script that shows it."""
