"""The report of a run, and the browser that its pages are looked at in."""
