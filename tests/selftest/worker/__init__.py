"""The process of a candidate: its messages, and what it does to the judge: nothing."""
