"""Documentation: which of queries and keys may be the more, as "Lq <= Lk" or "no more queries than keys" state it."""

from __future__ import annotations

import re

from attention_conformance.implementations.discovery.documented import documents_of

QUERIES = r"(?:[LTNSM]_?q|q_?len(?:gth)?|len_?q|seq_?len_?q|n_?q|query_?len(?:gth)?|(?:n_|num_)?queries|tgt_?len)"
KEYS = r"(?:[LTNSM]_?kv?|kv?_?len(?:gth)?|len_?kv?|seq_?len_?kv?|n_?kv?|key_?len(?:gth)?|(?:n_|num_)?keys|src_?len)"
NO_MORE, NO_LESS = r"(?:<=|≤|\\le(?:q)?\b)", r"(?:>=|≥|\\ge(?:q)?\b)"
FEWER = re.compile(
    rf"\b{QUERIES}\b`*\s*{NO_MORE}\s*`*{KEYS}\b|\b{KEYS}\b`*\s*{NO_LESS}\s*`*{QUERIES}\b"
    r"|\b(?:no|never|not) more queries than keys\b|\bat (?:most|least) as many (?:queries as keys|keys as queries)\b",
    re.IGNORECASE,
)
"""Words for as many queries as keys, or fewer."""
MORE_KEYS = re.compile(r"\bat least as many queries\b|\bat most as many keys\b", re.IGNORECASE)
"""What looks like these words, and states the contrary."""
IF = re.compile(
    r"\b(?:if|when|with|where|for|under)\b[^.;]*\bcausal|\bcausal\w*`*\s*(?:=+\s*`*True\b|:)", re.IGNORECASE
)
"""A condition on causality."""


def states_no_more_queries(target: object, causal: bool = False) -> bool:
    """Whether there are no more queries than keys by its documentation; `causal`: also where that is said of causality.

    Signs such as <= have to stand between names of both lengths.
    """
    lines = (line for text in documents_of(target) for line in text.splitlines())
    stated = [line for line in lines if FEWER.search(line) and not MORE_KEYS.search(line)]
    return any(causal or not IF.search(line) for line in stated)
