"""Right attention in replaceable steps: what the defects modify, one step each."""
