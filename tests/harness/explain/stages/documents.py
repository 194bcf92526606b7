"""Documents: positions of sequences that are stored one after the other, as mistakes make them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def by_the_longest(state: Mapping[str, Any]) -> Tensor:
    """Positions of queries in their documents, with the offset that the largest numbers of queries and keys have.

    Raises:
        ValueError: there are no documents.
    """
    if state.get("query_documents") is None:
        raise ValueError("there are no documents")
    of_query, of_key = state["query_documents"], state["key_documents"]
    queries, keys = ((of_query[..., None] == own[..., None, :]).sum(-1) for own in (of_query, of_key))
    longest = [(own[..., None] == own[..., None, :]).sum(-1).amax() for own in (of_query, of_key)]
    places: Tensor = state["query_places"] - (keys - queries) + (longest[1] - longest[0])
    return places
