"""How often a candidate is called before it is judged: hostile ones of the tests wait so long."""

from functools import cache

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations.discovery.functions.functions import function_candidate


@cache
def detection_calls() -> int:
    """The calls that detection makes of a function of query, key and value."""
    calls: list[int] = []

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        return scaled_dot_product_attention(query, key, value)

    function_candidate("attention", attention, {}, "cpu")
    return len(calls)
