"""The limits of a candidate: time, deaths, and how much of what it prints is kept."""

from __future__ import annotations

STARTING = 120.0
"""Seconds that a worker has at least for its start, and for the import of its candidate."""
CALL = 60.0
"""Seconds that a small call has, unless the user says otherwise."""
LATEST = 86_400.0
"""Seconds that the user may give it at most."""
LOOK = 1.0
"""Seconds between two looks at a process that sends nothing: where it has ended, another may hold its streams."""
HELD_UP = 0.05
"""The share of a processor that others leave at least to a process that they hold up: one that polls takes less."""
ENDED = 5.0
"""Seconds within which a process whose streams are closed has ended."""
ENDING = 5.0
"""Seconds that a worker has to end by itself once the run is over; without exit handlers it takes milliseconds."""
DEATHS = 3
"""The deaths after which a worker is not started again."""
KEPT = 2**20
"""Bytes of the candidate's own output that are kept, from the end."""
SHOWN = 2000
"""Bytes of it that are shown with a failure."""
LINES = 3
"""Lines of that output in a message."""
LONGEST = 300
"""Characters of a text of the candidate in a message."""
LONGEST_REASON = 1000
"""Characters of the reason for which a target cannot be judged: its end is what to do."""
PIECE = 2**16
"""Bytes that are read or written at once."""
SLOWEST = 1e6
"""Multiply-adds a second of the slowest candidate that is waited for: plain Python does ten times as many."""
AHEAD = 2**15
"""Bytes of requests that are sent before the first of their answers was read: a pipe holds twice as much on Linux."""
