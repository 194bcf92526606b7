"""torch.nn.attention.flex_attention: masks and biases as functions of the position of a score."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.builtin.inhouse.call_options import Options
from attention_conformance.implementations.builtin.inhouse.tile_masks import Documents
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Feature, Packing, Scope

MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(sample, head, query, key) -> True = may attend."""
ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(scaled score, sample, head, query, key) -> score."""

FLEX_FEATURES = SDPA_FEATURES - {Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.EMPTY_SIZES} | {
    Feature.KEY_PADDING,
    Feature.GROUPED,
    Feature.WINDOW,
    Feature.SOFTCAP,
    Feature.QUERY_START,
    Feature.ALIBI,
    Feature.RELATIVE_BIAS,
    Feature.SINKS,
    Feature.SEGMENTS,
    Feature.CUMULATIVE_LENGTHS,
    Feature.LOG_SUM_EXP,
}
"""What score_mod and mask_mod can express. On the CPU it has no gradients; sequences of length 0 it does not take."""
COMPILED_FEATURES = FLEX_FEATURES - {
    Feature.LOG_SUM_EXP,
    Feature.SINKS,
    Feature.SCALE,
    Feature.VALUE_WIDTH,
    Feature.VIEWS,
}
"""On the CPU the compiled kernel returns no log-sum-exp, from which sinks are made. Scales, widths and layouts are each
compiled anew, and so they are left to the other variant."""


@dataclass(frozen=True)
class FlexCall:
    """One call: the three inputs, and its options."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: Options[Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Lq, Lk)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[-2]

    @cached_property
    def documents(self) -> Documents | None:
        """With a row for each sample; None where there is but one document."""
        documents = Documents.of(self.options, self.shape[2:])
        return documents and Documents(*(x.expand(self.shape[0], -1) for x in documents))

    @cached_property
    def ahead(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """(sample, query, key) -> how far the key stands after the query, in their document."""
        start = self.options.query_start or 0
        if self.documents is None:
            return lambda b, i, j: j - i - start
        at_query, at_key = self.documents.query, self.documents.key
        return lambda b, i, j: at_key[b, j] - at_query[b, i] - start

    def wide(self, array: Tensor) -> Tensor:
        """In the precision in which scores are kept."""
        return array if array.dtype is torch.float64 else array.float()


def mask_mods(call: FlexCall) -> Iterator[MaskMod]:
    """One for each mask of the call."""
    ahead, options = call.ahead, call.options
    left, right = options.window_size
    if options.attn_mask is not None and options.attn_mask.dtype is torch.bool:
        kept = options.attn_mask.expand(call.shape).contiguous()
        yield lambda b, h, i, j: kept[b, h, i, j]
    if options.key_padding_mask is not None:
        real = options.key_padding_mask
        yield lambda b, h, i, j: real[b, j]
    if options.is_causal:
        yield lambda b, h, i, j: ahead(b, i, j) <= 0
    if left >= 0:
        yield lambda b, h, i, j: ahead(b, i, j) >= -left
    if right >= 0:
        yield lambda b, h, i, j: ahead(b, i, j) <= right
    if call.documents is not None:
        of_query, of_key = call.documents.of_query, call.documents.of_key
        yield lambda b, h, i, j: of_query[b, i] == of_key[b, j]


def score_mods(call: FlexCall) -> Iterator[ScoreMod]:
    """What is done to the scaled scores, in this order."""
    ahead, options = call.ahead, call.options
    cap = options.softcap
    if cap is not None:
        yield lambda s, b, h, i, j: cap * torch.tanh(s / cap)
    if options.alibi_slopes is not None:
        slopes = call.wide(options.alibi_slopes)
        yield lambda s, b, h, i, j: s - slopes[h] * ahead(b, i, j).abs()
    if options.relative_bias is not None:
        table, most = call.wide(options.relative_bias), options.relative_bias.shape[-1] // 2
        yield lambda s, b, h, i, j: s + table[h, ahead(b, i, j).clamp(-most, most) + most]
    if options.attn_mask is not None and options.attn_mask.dtype is not torch.bool:
        added = options.attn_mask.expand(call.shape).contiguous()
        yield lambda s, b, h, i, j: s + added[b, h, i, j]


def seen_by_all(masks: tuple[MaskMod, ...]) -> MaskMod:
    """The keys that every mask leaves."""

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        kept = masks[0](b, h, i, j)
        for mask in masks[1:]:
            kept = kept & mask(b, h, i, j)
        return kept

    return seen


def one_after_another(mods: tuple[ScoreMod, ...]) -> ScoreMod:
    """The composition of score_mods."""

    def composed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, b, h, i, j)
        return score

    return composed


FEW = 2
"""Tokens of a block, fewer than those of most cases."""


def one_block(seen: MaskMod, call: FlexCall) -> flex.BlockMask:
    """Looked through from end to end: only a compiled kernel can leave blocks out."""
    *_, queries, keys = call.shape
    count = torch.ones(1, 1, 1, dtype=torch.int32, device=call.query.device)
    place = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=call.query.device)
    lengths = (queries, keys)
    return flex.BlockMask.from_kv_blocks(count, place, BLOCK_SIZE=lengths, mask_mod=seen, seq_lengths=lengths)


def sparse_blocks(seen: MaskMod, call: FlexCall) -> flex.BlockMask:
    """With blocks that are left out."""
    return flex.create_block_mask(seen, *call.shape, str(call.query.device))


def small_blocks(seen: MaskMod, call: FlexCall) -> flex.BlockMask:
    """With blocks of few tokens, of which some are left out and others are listed as full."""
    return flex.create_block_mask(seen, *call.shape, str(call.query.device), BLOCK_SIZE=FEW)


def arguments(call: FlexCall, blocks: Callable[[MaskMod, FlexCall], flex.BlockMask]) -> dict[str, Any]:
    """What flex_attention is called with in addition to query, key and value; only what is needed appears."""
    masks, mods = tuple(mask_mods(call)), tuple(score_mods(call))
    added: dict[str, Any] = {"scale": call.options.scale, "enable_gqa": call.options.enable_gqa}
    if masks:
        added["block_mask"] = blocks(seen_by_all(masks), call)
    return added | ({"score_mod": one_after_another(mods)} if mods else {})


def with_sinks(output: Tensor, log_sum_exp: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp after a logit (H,) without a value has joined the softmax."""
    logits = sinks[:, None].to(log_sum_exp.dtype)
    share = torch.sigmoid(log_sum_exp - logits)
    return (output * share[..., None]).to(output.dtype), torch.logaddexp(log_sum_exp, logits)


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    call = FlexCall(query, key, value, Options(**options))
    request = flex.AuxRequest(lse=True)
    output, aux = flex.flex_attention(query, key, value, **arguments(call, one_block), return_aux=request)
    return (output, aux.lse) if call.options.sinks is None else with_sinks(output, aux.lse, call.options.sinks)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Step by step: called as it is, flex_attention is traced for each shape, without a gain, and warns of it."""
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


@cache
def _compiled() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
    return compiled


def compiled_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The output alone: on the CPU the compiled kernel has no log-sum-exp."""
    return _compiled()(query, key, value, **arguments(FlexCall(query, key, value, Options(**options)), sparse_blocks))


@contextmanager
def any_number_of_kernels() -> Iterator[None]:
    """After a few kernels torch would go on without compiling."""
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
        yield


SHAPES = ((5, 7), (7, 7))
"""The lengths of queries and keys in which the compiled kernel is checked."""


def few_kernels(case: Case) -> Case | Unsupported:
    """The fit of the compiled kernel: each shape, and each pair of score_mod and mask_mod, is a kernel of its own."""
    s, call = case.sizes, case.extension
    if (s.query_length, s.key_length) not in SHAPES or s.batch != Sizes.batch or s.d_k != Sizes.d_k:
        return Unsupported("each shape is compiled anew, and only two are checked")
    mods = (
        case.mask is not MaskKind.NONE,
        case.padding is not Padding.NONE,
        case.causal,
        call.windowed,
        call.softcap is not None,
        call.query_start is not None,
        call.alibi,
        call.relative_bias > 0,
        call.packing is not Packing.NONE,
    )
    if sum(mods) > 2:
        return Unsupported("each combination is compiled anew, and no more than two options are combined")
    return case.sized(d_v=s.d_k)


def missing() -> str:
    """Why nothing can be compiled here; empty if it can."""
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"torch.compile needs a C++ compiler, and there is no {compiler}"


EAGER = Implementation(
    "torch.flex",
    # Step by step it costs milliseconds a call; float32 and float16 go the way of bfloat16, in float32 throughout.
    Claims(Scope.OP, FLEX_FEATURES, dtypes=("float64", "bfloat16")),
    torch_op(attention, extras=("log_sum_exp",), context=uncompiled),
    "flex_attention, not compiled",
)
COMPILED = Implementation(
    "torch.flex.compiled",
    Claims(Scope.OP, COMPILED_FEATURES, dtypes=("float32", "bfloat16", "float16"), fit=few_kernels),
    torch_op(compiled_attention, context=any_number_of_kernels),
    "flex_attention, compiled: two shapes, some minutes for each dtype",
)
