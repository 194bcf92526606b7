"""The functions of FlashInfer, xFormers, transformers, JAX and ONNX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.shipped.shipped import (
    Interface,
    Shipped,
    called_tokens_first,
    first,
    joined,
)
from attention_conformance.implementations.discovery.shipped.shipped_latent import LATENT
from attention_conformance.implementations.discovery.shipped.shipped_merge import MERGES
from attention_conformance.implementations.discovery.shipped.shipped_mods import IN_BLOCKS, POSITIONAL
from attention_conformance.implementations.discovery.shipped.shipped_paged import PAGED
from attention_conformance.implementations.discovery.shipped.shipped_planned import PLANNED, to_the_left
from attention_conformance.implementations.discovery.shipped.shipped_quantised import QUANTISED
from attention_conformance.implementations.discovery.shipped.shipped_sinks import SINKS
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.spec.cases import Case, MaskShape, Padding
from attention_conformance.spec.features import Feature
from attention_conformance.spec.masks import real_keys
from attention_conformance.spec.optional import optional

torch = optional("torch")

FLASHINFER = {
    "scale": "sm_scale",
    "window_size": "window_left",
    "softcap": "logits_soft_cap",
    "rotary_base": "rope_theta",
}
GROUPS, SAMPLES = "with its heads in groups, (B, L, G, H, d)", "without an axis of heads, (B * H, L, d)"
SIDE_BY_SIDE = "with all heads in one axis, (B, L, H * d)"
"""A way to call ONNX's operator, which takes the numbers of heads for that."""
WHERE_TAKEN = (GROUPS, SAMPLES, IN_BLOCKS, SIDE_BY_SIDE)
"""Ways that are documented, and that not all functions with these parameters offer."""
BOTTOM_RIGHT = {"causal-alignment": "bottom-right", "log-sum-exp-base": "2"}


def why_missing(way: str, check: ClaimCheck) -> str:
    """Why a function cannot be called in this way, plainly or with a mask that it claims; empty where it can."""
    if way not in WHERE_TAKEN:
        plain = check.run(PLAIN)
        return str(plain.error) if plain.not_offered else ""
    kinds = ((Feature.BOOL_MASK, MASKED), (Feature.FLOAT_MASK, BIASED))
    tried = [check.run(case) for case in (PLAIN, *(case for feature, case in kinds if feature in check.claims))]
    return next((str(each.error) for each in tried if each.error), "")


def one_query(case: Case) -> Case | Unsupported:
    """The fit of a decoder's step, whose query stands at the last key."""
    return to_the_left(replace(case.sized(query_length=1), causal=False))


def prefill(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(L, H, d) each, a call for each sample."""
    mask = options.pop("attn_mask", None)
    if mask is not None and options.get("is_causal"):
        raise ValueError("a custom mask takes the place of the causal flag")
    keywords = _flashinfer(shipped, options)
    masks = [{}] * len(query) if mask is None else _custom_masks(mask, query, key)
    rows = zip(query, key, value, masks, strict=True)
    calls = [(*(x.swapaxes(0, 1).contiguous() for x in three), given) for *three, given in rows]
    answers = [first(shipped.function(q, k, v, **keywords, **given)) for q, k, v, given in calls]
    return _stacked(answers)


def decode(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(H, d) for the query, (L, H, d) for key and value, a call for each sample."""
    keywords = _flashinfer(shipped, options)
    rows = (
        (q[:, 0].contiguous(), *(x.swapaxes(0, 1).contiguous() for x in kv))
        for q, *kv in zip(query, key, value, strict=True)
    )
    answers = [first(shipped.function(*three, **keywords)) for three in rows]
    return _stacked([(output[None], tuple(log[None] for log in logs)) for output, logs in answers])


def _flashinfer(shipped: Shipped, options: dict[str, Any]) -> dict[str, Any]:
    given = dict(options)
    if "window_size" in given:
        given["window_size"] = given["window_size"][0]
    rotary = {"pos_encoding_mode": "ROPE_LLAMA", "rope_scale": 1.0} if "rotary_base" in given else {}
    return shipped.keywords(given) | rotary


def _custom_masks(mask: Any, query: Any, key: Any) -> list[dict[str, Any]]:
    full = mask.expand(len(query), 1, query.shape[2], key.shape[2])
    return [{"custom_mask": each.contiguous()} for each in full[:, 0]]


def _stacked(answers: list[tuple[Any, tuple[Any, ...]]]) -> Any:
    """Outputs (Lq, H, d) and log-sum-exps (Lq, H) of the samples, as (B, H, Lq, d) and (B, H, Lq)."""
    logs = zip(*(logs for _, logs in answers), strict=True)
    stacked = torch.stack([output.swapaxes(0, 1) for output, _ in answers])
    return joined(stacked, *(torch.stack([log.swapaxes(0, 1) for log in each]) for each in logs))


def xformers(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, L, H, d) each, and a bias of every score."""
    return called_tokens_first(shipped, (query, key, value), _with_full_mask(shipped, options, query, key))[0]


def in_groups(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, L, G, H, d) each, and a bias (B, G, H, Lq, Lk)."""
    heads = query.shape[1]
    groups = next((n for n in (2, 3) if heads % n == 0), 1)
    keywords = _with_full_mask(shipped, options, query, key)
    if "attn_bias" in options:
        keywords[shipped.own["attn_bias"]] = keywords[shipped.own["attn_bias"]].unflatten(1, (groups, -1))
    parts = [x.swapaxes(1, 2).unflatten(2, (groups, -1)) for x in (query, key, value)]
    return shipped.function(*parts, **keywords).flatten(2, 3).swapaxes(1, 2)


def heads_in_samples(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B * H, L, d) each, and a bias (B * H, Lq, Lk)."""
    keywords = _with_full_mask(shipped, options, query, key)
    if "attn_bias" in options:
        keywords[shipped.own["attn_bias"]] = keywords[shipped.own["attn_bias"]].flatten(0, 1)
    output = shipped.function(*(x.flatten(0, 1) for x in (query, key, value)), **keywords)
    return output.unflatten(0, query.shape[:2])


def eager(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """With a module that knows its mode and its groups; the output as (B, Lq, H, d)."""
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = query.shape[1] // max(1, key.shape[1]), False
    keywords = {"attention_mask": None, "scaling": query.shape[-1] ** -0.5}
    keywords |= _with_full_mask(shipped, options, query, key)
    output, extras = first(shipped.function(module, query, key, value, **keywords))
    return joined(output.swapaxes(1, 2), *(each for each in extras if each is not None))


def _with_full_mask(shipped: Shipped, options: dict[str, Any], query: Any, key: Any) -> dict[str, Any]:
    keywords = shipped.keywords(options)
    if "attn_bias" in options:
        mask = options["attn_bias"]
        keywords[shipped.own["attn_bias"]] = mask.expand(*query.shape[:3], key.shape[2])
    return keywords


def jax_nn(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, L, H, d) each; masks of four axes, padding is one; a window without a limit is one that is wide enough.

    Lengths are int32. Ports take tensors.
    """
    given = dict(options)
    for name in {"valid_lens", "query_lens"} & given.keys():
        given[name] = given[name].astype("int32") if hasattr(given[name], "astype") else given[name].int()
    if (padding := given.pop("key_padding_mask", None)) is not None:
        given["attn_mask"] = padding[:, None, None, :] & given.get("attn_mask", True)
    if "window_size" in given:
        wide = query.shape[2] + key.shape[2]
        given["window_size"] = tuple(wide if side < 0 else side for side in given["window_size"])
    for name in {"attn_mask", "attn_bias"} & given.keys():
        given[name] = given[name].reshape((1,) * (4 - given[name].ndim) + given[name].shape)
    output, logs = first(shipped.function(*(x.swapaxes(1, 2) for x in (query, key, value)), **shipped.keywords(given)))
    return joined(output.swapaxes(1, 2), *(log.swapaxes(1, 2) for log in logs))


def jax_nn_by_one_number(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """The same, with a window of equal sides as one number."""
    left, right = options.get("window_size", (None, None))
    if left is not None and left == right:
        shipped = replace(shipped, function=_joining_sides(shipped.function))
    return jax_nn(shipped, query, key, value, options)


def _joining_sides(function: Callable[..., Any]) -> Callable[..., Any]:
    def joined_sides(*inputs: Any, local_window_size: tuple[int, int], **options: Any) -> Any:
        return function(*inputs, local_window_size=local_window_size[0], **options)

    return joined_sides


def from_the_real_end(case: Case) -> Case | Unsupported:
    """The fit of ONNX: with lengths, the last query stands at the last real key where they meet the causal flag.

    Masks that are shorter than the keys hide the rest, and are not repeated; queries and keys are multiplied by the
    square root of the scale.
    """
    if (case.scale or 0.0) < 0:
        return Unsupported("ONNX's operator takes the square root of the scale")
    fitted = lengths_of_samples(case)
    if fitted.mask_shape is MaskShape.QUERIES:
        fitted = replace(fitted, mask_shape=MaskShape.SAMPLE)
    if not (fitted.causal and fitted.padding is Padding.LENGTHS):
        return fitted
    queries = max(1, fitted.sizes.query_length)
    while real_keys(fitted).sum(-1).min(initial=queries) < queries:
        fitted = fitted.sized(key_length=fitted.sizes.key_length + queries)
    return fitted.extended(query_starts=True)


def onnx(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, H, L, d) each, and the counts of heads if they are needed; a cache is returned after the output."""
    counts = {name: count for name, count in _counts(query, key).items() if name in _needed(shipped.function)}
    return _answer_of_onnx(shipped, (query, key, value), {**shipped.keywords(options), **counts})


def heads_side_by_side(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, L, H * d) each, with the counts of heads, and the output as it lies."""
    flat = (x.swapaxes(1, 2).reshape((x.shape[0], x.shape[2], x.shape[1] * x.shape[3])) for x in (query, key, value))
    answer = _answer_of_onnx(shipped, tuple(flat), {**shipped.keywords(options), **_counts(query, key)})
    output, extras = first(answer)
    samples, heads, length = query.shape[:3]
    return joined(output.reshape((samples, length, heads, value.shape[-1])).swapaxes(1, 2), *extras)


@cache
def _needed(function: Callable[..., Any]) -> frozenset[str]:
    """Its parameters that have to be given."""
    return frozenset(p.name for p in signature_of(function).parameters.values() if required(p))


def _counts(query: Any, key: Any) -> dict[str, int]:
    return {"q_num_heads": query.shape[1], "kv_num_heads": key.shape[1]}


def _answer_of_onnx(shipped: Shipped, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    if "qk_matmul_output_mode" not in shipped.names:
        return first(shipped.function(*inputs, **given))[0]
    output, extras = first(shipped.function(*inputs, **given, qk_matmul_output_mode=3))
    return joined(output, *extras[2:3])


ONE_NUMBER = "with one number as its window"
"""A way in which some functions of an interface can be called, and others raise."""

OTHERS = (
    Interface(
        "flashinfer.single_prefill_with_kv_cache",
        frozenset({"q", "k", "v", "custom_mask", "sm_scale", "window_left"}),
        prefill,
        FLASHINFER | {"is_causal": "causal", "attn_mask": "custom_mask"},
        BOTTOM_RIGHT | {"causal-with-mask": "error"},
        fit=to_the_left,
        lacks=frozenset({Feature.FLOAT_MASK, Feature.MASK_GRADIENT}),
    ),
    Interface(
        "flashinfer.single_decode_with_kv_cache",
        frozenset({"q", "k", "v", "kv_layout", "sm_scale", "window_left"}),
        decode,
        FLASHINFER,
        BOTTOM_RIGHT,
        fit=one_query,
    ),
    Interface(
        "xformers.ops.memory_efficient_attention",
        frozenset({"query", "key", "value", "attn_bias", "p"}),
        xformers,
        {"attn_bias": "attn_bias", "scale": "scale", "dropout_p": "p"},
        ways={GROUPS: (frozenset(), in_groups), SAMPLES: (frozenset(), heads_in_samples)},
    ),
    Interface(
        "transformers' eager_attention_forward",
        frozenset({"module", "query", "key", "value", "attention_mask", "scaling"}),
        eager,
        {"attn_bias": "attention_mask", "scale": "scaling", "dropout_p": "dropout", "softcap": "softcap"},
    ),
    Interface(
        "jax.nn.dot_product_attention",
        frozenset({"query", "key", "value", "bias", "mask", "is_causal", "key_value_seq_lengths"}),
        jax_nn,
        {
            "attn_mask": "mask",
            "attn_bias": "bias",
            "is_causal": "is_causal",
            "scale": "scale",
            "window_size": "local_window_size",
            "key_padding_mask": "mask",
            "valid_lens": "key_value_seq_lengths",
            "query_lens": "query_seq_lengths",
        },
        {"softmax-precision": "float32"},
        fit=lengths_of_samples,
        ways={ONE_NUMBER: (frozenset({"local_window_size"}), jax_nn_by_one_number)},
    ),
    Interface(
        "ONNX Attention",
        frozenset({"Q", "K", "V", "is_causal", "q_num_heads", "kv_num_heads"}),
        onnx,
        {name: name for name in ("attn_mask", "is_causal", "scale", "softcap")} | {"valid_lens": "nonpad_kv_seqlen"},
        fit=from_the_real_end,
        ways={SIDE_BY_SIDE: (frozenset(), heads_side_by_side)},
    ),
)


@cache
def interfaces() -> tuple[Interface, ...]:
    """All interfaces that are known; the first whose parameters a function has is its own."""
    if not torch:
        return (*(each for each in OTHERS if each.call in (jax_nn, onnx)), *MERGES, *PAGED, *QUANTISED, *LATENT)
    from attention_conformance.implementations.discovery.shipped.shipped_flash import FLASH

    return (*FLASH, *OTHERS, SINKS, *POSITIONAL, *MERGES, *PLANNED, *PAGED, *QUANTISED, *LATENT)
