"""Which mistake a candidate makes: hypotheses, compared with what it answered, and when and where it fails."""
