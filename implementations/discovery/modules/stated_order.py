"""The order of a table's rows as documentation states it: by a difference of the places of a key and of a query."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

from attention_conformance.implementations.discovery.modules.distance_tables import Zero
from attention_conformance.implementations.discovery.modules.part_uses import Use

OF_KEY, OF_QUERY = r"(?:j|k|key|keys?_pos\w*|k_pos|pos_k)", r"(?:i|q|query|query_pos\w*|q_pos|pos_q)"
AHEAD, BEHIND = (
    re.compile(rf"\b{one}\s*-\s*{other}\b", re.IGNORECASE) for one, other in ((OF_KEY, OF_QUERY), (OF_QUERY, OF_KEY))
)
"""The distance of a key from a query, and of a query from a key."""


def states_ahead(kind: object) -> bool | None:
    """Whether distances count from the query to the key, or the other way; None where it states neither or both."""
    own = getattr(kind, "original", kind)
    texts = [inspect.getdoc(own), inspect.getdoc(getattr(own, "__init__", None)) if isinstance(own, type) else ""]
    text = "\n".join(each or "" for each in texts)
    ahead, behind = (pattern.search(text) is not None for pattern in (AHEAD, BEHIND))
    return None if ahead is behind else ahead


def in_stated_order(kind: object, use: Use) -> Use:
    """The use, with the rows of distances of both sides in the order that is documented, where one is."""
    if use.table is None or use.table.zero is not Zero.MIDDLE or (ahead := states_ahead(kind)) is None:
        return use
    return replace(use, table=replace(use.table, forward=ahead))
