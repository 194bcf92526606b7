"""The functions by which models of the package transformers attend in their eager form, called for problems."""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.packages._called_by_module import called_by_module
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.measurements.random_cases import random_case

FLOAT32 = Conventions(softmax_precision=SoftmaxPrecision.FLOAT32)
MASKS = frozenset({Feature.CAUSAL, Feature.VALID_LENS})
WIDE = MASKS | {Feature.GROUPED, Feature.WINDOW}


@dataclass(frozen=True)
class Eager:
    """The function of one model: what cases may have, what its source states, and its scale; None: the default."""

    model: str
    options: Set[Feature] = MASKS
    conventions: Conventions = Conventions()
    scale: float | None = None

    def run(self, problem: Problem, device: str) -> Result:
        """Its output, weights and gradients.

        Raises:
            ImportError: transformers is not installed.
        """
        module = import_module(f"transformers.models.{self.model}.modeling_{self.model}")
        called = called_by_module(module.eager_attention_forward)
        return torch_op(partial(_answered, module, called), extras=("weights",))(problem, device)

    def cases(self, count: int) -> Iterator[Case]:
        """Random ones; queries under a causal mask are the last ones, as when a prompt is continued."""
        for number in range(count):
            drawn = random_case(number, self.options)
            case = replace(drawn, scale=self.scale if drawn.scale is None else drawn.scale)
            if case.extension.window_left is not None:
                case = replace(case, causal=True).extended(window_right=None)
            sizes = case.sizes
            yield case.extended(query_start=sizes.key_length - sizes.query_length) if case.causal else case


EAGER = (
    Eager("llama", WIDE - {Feature.WINDOW}, FLOAT32),
    Eager("mistral", WIDE, FLOAT32),
    Eager("gemma2", WIDE | {Feature.SOFTCAP}, FLOAT32),
    Eager("gpt_oss", WIDE | {Feature.SINKS}),
    Eager("bert"),
    Eager("gpt2"),
    Eager("t5", MASKS | {Feature.BUCKETED_BIAS}, scale=1.0),
)


def _answered(
    module: Any, called: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Any:
    """With the mask that the package itself makes of lengths, the causal flag and a window."""
    masks = [_own_mask(query, key, options), _added(options.get("attn_mask"), query)]
    mask = sum(each for each in masks if each is not None) if any(each is not None for each in masks) else None
    passed: dict[str, Any] = {name: options[name] for name in ("softcap", "sinks", "scale") if name in options}
    if "bucketed_bias" in options:
        passed["position_bias"] = _biases(module.T5Attention, query.shape[2], key.shape[2], options)
    return called(query, key, value, mask, **passed)


def _own_mask(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Tensor | None:
    causal, lengths, window = (options.get(name) for name in ("is_causal", "valid_lens", "window_size"))
    if not causal and lengths is None:
        return None
    from transformers import masking_utils as made

    function = made.causal_mask_function if causal else made.bidirectional_mask_function
    if window is not None:
        function = made.sliding_window_causal_mask_function(window[0] + 1)
    real = None if lengths is None else torch.arange(key.shape[2]) < lengths[:, None]
    sizes = {"batch_size": len(query), "q_length": query.shape[2], "kv_length": key.shape[2]}
    start = options.get("query_start", 0)
    mask: Tensor = made.eager_mask(
        **sizes, q_offset=start, mask_function=function, attention_mask=real, dtype=query.dtype
    )
    return mask


def _added(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A boolean mask as the package has it: 0, and the least finite number."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)


def _biases(attention: Any, queries: int, keys: int, options: Mapping[str, Any]) -> Tensor:
    """(1, H, Lq, Lk), by the numbers of buckets that T5 has for distances."""
    table: Tensor = options["bucketed_bias"]
    places = torch.arange(queries)[:, None] + options.get("query_start", 0)
    numbers = attention._relative_position_bucket(
        torch.arange(keys)[None] - places,
        bidirectional=options.get("bidirectional", True),
        num_buckets=len(table),
        max_distance=options["max_distance"],
    )
    return table[numbers].permute(2, 0, 1)[None]
