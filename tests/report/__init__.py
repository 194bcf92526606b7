"""Reports: the event log of a run, and the views that are made from it."""
