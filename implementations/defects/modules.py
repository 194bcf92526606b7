"""Mistakes of chapter 26: modes, saving, copying, inputs without a batch, and a single head."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise import steps
from attention_conformance.implementations.builtin.stepwise.extended_layers import UnbatchedLayer
from attention_conformance.implementations.builtin.stepwise.layer import LAYER_PLACES, Layer, call_layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import (
    CRASH,
    LEAK,
    PRECISION,
    STATE,
    breaks,
    breaks_built,
    breaks_layer,
)
from attention_conformance.implementations.discovery.modules.bias_tables import BucketRows, Tables
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem

MODES = frozenset(MHA_FEATURES | {Feature.EVALUATION})
SAVED = (Feature.SAVED,)
COPIED = (Feature.COPIED,)
UNBATCHED = (Feature.UNBATCHED,)
breaks_modes = partial(breaks_layer, features=MODES)
breaks_copied = partial(breaks_layer, "modules.copied", modes=COPIED + SAVED)


@breaks_modes(
    "modules.training-and-evaluation",
    "modules.evaluation",
    holds=("effects.stateless", "projections.query"),
    severity=STATE,
)
class MatrixKeptFromTheFirstEvaluation(Layer):
    cached: Tensor | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.training:
            return super().projected(query, key, value)
        if self.cached is None:
            self.cached = self.q.weight.detach().clone()
        return F.linear(query, self.cached, self.q.bias), self.k(key), self.v(value)


@breaks_modes(
    "modules.evaluation", "modules.training-and-evaluation", holds=("relations.grad-mode", "values.weighted-sum")
)
class ValuesCentredInEvaluation(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        return q, k, v if self.training else v - v.mean((0, 1))


@breaks_modes("modules.evaluation", holds=("modules.training-and-evaluation", "masks.key-padding"), severity=LEAK)
class PaddingDroppedInEvaluation(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if not self.training:
            options.pop("key_padding_mask", None)
        return super().attend(q, k, v, **options)


@breaks_modes("modules.training-and-evaluation", holds=("modules.evaluation", "gradients.key"), severity=STATE)
class KeysKeptFromEvaluation(Layer):
    cached: Tensor | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if not self.training:
            self.cached = k.detach()
        elif self.cached is not None and self.cached.shape == k.shape:
            k = self.cached
        return q, k, v


breaks_saved = partial(breaks_layer, modes=SAVED)
breaks_saved_and_strided = partial(breaks_saved, "modules.saved", "modules.strided-parameters")


@breaks_saved_and_strided(holds=("projections.bias", "projections.output-bias"), severity=STATE)
class BiasesLeftOutOfTheState(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        whole = super().state_dict(*args, **options)
        return {name: tensor for name, tensor in whole.items() if name.endswith("weight")}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


@breaks_saved_and_strided(free=False, holds=("projections.key", "projections.value"))
class LoadedInAnotherOrder(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        whole: dict[str, Any] = super().state_dict(*args, **options)
        return whole | {"qkv": torch.cat([whole.pop(f"{role}.weight") for role in "qkv"])}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        rest = dict(state_dict)
        parts = dict(zip(("q.weight", "v.weight", "k.weight"), rest.pop("qkv").chunk(3), strict=True))
        return super().load_state_dict(rest | parts, strict, assign)


@breaks_saved("modules.saved", holds=("modules.strided-parameters", "effects.inputs"), severity=STATE)
class LoadedStateShared(Layer):
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict, assign=True)


@breaks_saved_and_strided(holds=("numerics.bound", "projections.query"), severity=PRECISION)
class SavedInHalfPrecision(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {name: tensor.bfloat16() for name, tensor in super().state_dict(*args, **options).items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        dtype = self.q.weight.dtype
        return super().load_state_dict({n: t.to(dtype) for n, t in state_dict.items()}, strict, assign)


@breaks_saved("modules.strided-parameters", holds=("modules.saved", "projections.query"))
class ParametersReadAsOnePiece(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = self.q.weight
        dense = weight.as_strided(weight.shape, (weight.shape[1], 1), weight.storage_offset())
        return F.linear(query, dense, self.q.bias), self.k(key), self.v(value)


@breaks_copied(holds=("modules.saved", "effects.inputs"), severity=CRASH, raises=True)
class OutputKeptWithItsGraph(Layer):
    def output(self, merged: Tensor) -> Tensor:
        self.last = super().output(merged)
        return self.last


@breaks_copied(holds=("modules.saved", "effects.inputs"), severity=STATE)
class MatricesSharedWithCopies(Layer):
    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        twin = copy.copy(self)
        twin.__dict__["_modules"] = dict(self._modules)
        return twin


@breaks_copied(holds=("modules.saved", "heads.split"), severity=STATE)
class HeadsForgottenWhenStored(Layer):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "num_heads": 1})  # type: ignore[no-untyped-call]  # of torch


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("shapes.output", "heads.split"), raises=True)
class TokensTakenForSamples(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.ndim == 3:
            return super().forward(query, key, value, **options)
        answer: Tensor = super().forward(query[:, None], key[:, None], value[:, None], **options)
        return answer[:, 0]


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("masks.key-padding", "masks.bool"), severity=LEAK)
class PaddingOfOneSampleDropped(UnbatchedLayer):
    def batched(self, masks: dict[str, Any]) -> dict[str, Any]:
        return {name: mask for name, mask in masks.items() if name != "key_padding_mask"}


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("masks.bool", "shapes.output"))
class MaskOfTheFirstHeadShared(UnbatchedLayer):
    def batched(self, masks: dict[str, Any]) -> dict[str, Any]:
        shared = {n: m[:1] for n, m in masks.items() if n == "attn_mask" and m.ndim == 3}
        return super().batched(masks | shared)


class Gated(Layer):
    """As it is built, a gate for each token and head multiplies the output of the head."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.gate = nn.Linear(self.q.in_features, self.num_heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """(B, L, width) in and out."""
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        return self.output(self.merge(self.attend(q, k, v, **options) * self.opened(self.gate(query))))

    def opened(self, logits: Tensor) -> Tensor:
        """(B, H, L, 1) of logits (B, L, H)."""
        return logits.sigmoid().transpose(1, 2)[..., None]


def _gated(kind: type[Gated], name: str) -> Implementation:
    """The layer, which has gates as it is built alone."""
    return Implementation(
        name,
        Claims(Scope.MODULE, MHA_FEATURES | {Feature.AS_BUILT}),
        torch_module(Layer, call_layer, LAYER_PLACES),
        modes={Feature.AS_BUILT: AsBuilt(kind, call_layer, unordered=True)},
    )


@breaks_built("modules.as-built", holds=("modules.one-head", "projections.query"))
def gates_of_heads_taken_for_tokens(name: str) -> Implementation:
    class Reshaped(Gated):
        def opened(self, logits: Tensor) -> Tensor:
            return logits.sigmoid().reshape(len(logits), self.num_heads, -1, 1)

    return _gated(Reshaped, name)


@breaks_built("modules.as-built", holds=("modules.one-head", "relations.batch"), severity=LEAK)
def gates_centred_over_the_batch(name: str) -> Implementation:
    class Centred(Gated):
        def opened(self, logits: Tensor) -> Tensor:
            return super().opened(logits - logits.mean(0))

    return _gated(Centred, name)


@breaks_built("modules.as-built", holds=("modules.one-head", "projections.query"), severity=LEAK)
def gate_of_an_option_from_the_next_token(name: str) -> Implementation:
    class Ahead(Gated):
        def opened(self, logits: Tensor) -> Tensor:
            return super().opened(logits.roll(-1, 1))

    made = _gated(Gated, name)
    ahead = AsBuilt(Ahead, call_layer, unordered=True)
    usual = replace(AsBuilt(Gated, call_layer, unordered=True), otherwise={"built with gate_next=True": ahead})
    return replace(made, modes={Feature.AS_BUILT: usual})


class Bucketed(Layer):
    """As it is built, a table has biases for the buckets of distances of T5."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.num_buckets, self.max_distance = 8, 20
        self.relative_attention_bias = nn.Embedding(self.num_buckets, self.num_heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """(B, L, width) in and out."""
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
        biases = self.relative_attention_bias(self.rows(ahead)).permute(2, 0, 1)
        return self.output(self.merge(self.attend(q, k, v, attn_mask=biases[None].to(q.dtype))))

    def rows(self, ahead: Tensor) -> Tensor:
        """Of the table, for keys so far ahead."""
        return steps.bucket(ahead, self.num_buckets, self.max_distance, True)


@breaks_built("modules.as-built", holds=("modules.one-head", "projections.query"))
def buckets_up_to_half_the_distance(name: str) -> Implementation:
    class Halved(Bucketed):
        def rows(self, ahead: Tensor) -> Tensor:
            return steps.bucket(ahead, self.num_buckets, self.max_distance // 2, True)

    table = BucketRows(Tables(Halved, call_layer, "relative_attention_bias.weight"), 8, 20)
    made = _gated(Gated, name)
    whole = replace(AsBuilt(Halved, call_layer), otherwise={"the rows of its table": table})
    return replace(made, modes={Feature.AS_BUILT: whole})


@breaks("modules.one-head", holds=("scores.scale-default", "masks.bool"))
def scale_left_out_for_one_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **({"scale": 1.0} if query.shape[1] == 1 else {}) | options)


@breaks("modules.one-head", holds=("masks.bool", "masks.float"), severity=LEAK, raises=True)
def mask_squeezed_for_one_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.shape[1] == 1 and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].squeeze()
    return Steps()(query, key, value, **options)
