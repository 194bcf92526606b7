"""Mistakes of chapter 26: modes, saving, copying, inputs without a batch, and a single head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.builtin.stepwise.extended_layers import UnbatchedLayer
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import (
    CRASH,
    LEAK,
    PRECISION,
    STATE,
    breaks,
    breaks_layer,
    github,
)
from attention_conformance.spec.features import Feature

MODES = frozenset(MHA_FEATURES | {Feature.EVALUATION})
SAVED = (Feature.SAVED,)
COPIED = (Feature.COPIED,)
UNBATCHED = (Feature.UNBATCHED,)
breaks_modes = partial(breaks_layer, features=MODES)


@breaks_modes(
    "modules.training-and-evaluation",
    "modules.evaluation",
    holds=("effects.stateless", "projections.query"),
    severity=STATE,
).entry(
    does="Makes a copy of the query matrix at the first call in evaluation mode, and never another.",
    repair="Derive nothing from parameters that outlives a change of them, or notice the change.",
    hides="Modules that are evaluated once, after training has ended.",
    links=github("pytorch/torchtitan/pull/3794"),
)
class MatrixKeptFromTheFirstEvaluation(Layer):
    kept: Tensor | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.training:
            return super().projected(query, key, value)
        if self.kept is None:
            self.kept = self.q.weight.detach().clone()
        return F.linear(query, self.kept, self.q.bias), self.k(key), self.v(value)


@breaks_modes(
    "modules.evaluation", "modules.training-and-evaluation", holds=("relations.grad-mode", "values.weighted-sum")
).entry(
    does="Subtracts the mean of the values from them in evaluation mode.",
    repair="Compute the same in both modes, but for dropout.",
    hides="Training.",
)
class ValuesCentredInEvaluation(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        return q, k, v if self.training else v - v.mean((0, 1))


@breaks_modes(
    "modules.evaluation", holds=("modules.training-and-evaluation", "masks.key-padding"), severity=LEAK
).entry(
    does="Leaves the padding mask out on its path for evaluation.",
    repair="Pass every mask to every path.",
    hides="Training mode, and batches without padding.",
    matters="Padding shows as soon as a model is served.",
    links=github("pytorch/pytorch/issues/107084", "pytorch/pytorch/issues/97409"),
)
class PaddingDroppedInEvaluation(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if not self.training:
            options.pop("key_padding_mask", None)
        return super().attend(q, k, v, **options)


@breaks_modes("modules.training-and-evaluation", holds=("modules.evaluation", "gradients.key"), severity=STATE).entry(
    does="Keeps the keys that it has projected in evaluation mode, and uses them in training where they fit.",
    repair="Drop what was kept for generation when the mode changes.",
    hides="Training that is not interrupted by an evaluation.",
    matters="The first batch after a validation attends to keys of the last validation batch.",
)
class KeysKeptFromEvaluation(Layer):
    kept: Tensor | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if not self.training:
            self.kept = k.detach()
        elif self.kept is not None and self.kept.shape == k.shape:
            k = self.kept
        return q, k, v


breaks_saved = partial(breaks_layer, modes=SAVED)


@breaks_saved(
    "modules.saved", "modules.strided-parameters", holds=("projections.bias", "projections.output-bias"), severity=STATE
).entry(
    does="Saves matrices only, and loads what is there without a warning about missing ones.",
    repair="Save all parameters, and load strictly.",
    hides="Modules without biases, and biases that are still 0.",
    links=github("deepspeedai/DeepSpeedExamples/issues/374", "axolotl-ai-cloud/axolotl/pull/762"),
)
class BiasesLeftOutOfTheState(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        whole = super().state_dict(*args, **options)
        return {name: tensor for name, tensor in whole.items() if name.endswith("weight")}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


@breaks_saved(
    "modules.saved", "modules.strided-parameters", free=False, holds=("projections.key", "projections.value")
).entry(
    does="Saves its three matrices as one, and takes them apart in another order.",
    repair="Read the parts in the order in which they were written.",
    hides="Modules that are not saved; checks that loading raises nothing.",
    links=github("Xilinx/brevitas/pull/654", "pytorch/torchchat/pull/158"),
)
class LoadedInAnotherOrder(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        whole: dict[str, Any] = super().state_dict(*args, **options)
        return whole | {"qkv": torch.cat([whole.pop(f"{role}.weight") for role in "qkv"])}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        rest = dict(state_dict)
        parts = dict(zip(("q.weight", "v.weight", "k.weight"), rest.pop("qkv").chunk(3), strict=True))
        return super().load_state_dict(rest | parts, strict, assign)


@breaks_saved("modules.saved", holds=("modules.strided-parameters", "effects.inputs"), severity=STATE).entry(
    does="Takes the tensors of a state for its own, and does not copy them.",
    repair="Copy, unless the caller requests assignment.",
    hides="States that come from a file.",
    matters="An average of weights, or a target network, moves along with the model that it was loaded from.",
)
class LoadedStateShared(Layer):
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict, assign=True)


@breaks_saved(
    "modules.saved", "modules.strided-parameters", holds=("numerics.bound", "projections.query"), severity=PRECISION
).entry(
    does="Saves in bfloat16 whatever the parameters are.",
    repair="Save the parameters in their own dtype.",
    hides="Parameters that are in bfloat16 already; tolerances for half types.",
    matters="Training cannot be resumed: the last digits of all weights are gone.",
)
class SavedInHalfPrecision(Layer):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {name: tensor.bfloat16() for name, tensor in super().state_dict(*args, **options).items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        dtype = self.q.weight.dtype
        return super().load_state_dict({n: t.to(dtype) for n, t in state_dict.items()}, strict, assign)


@breaks_saved("modules.strided-parameters", holds=("modules.saved", "projections.query")).entry(
    does="Reads its query matrix from memory row after row, whatever its strides are.",
    repair="Respect the strides, or make the matrix contiguous first.",
    hides="Parameters that were made by the module itself.",
    matters="Weights that are tied to a transposed matrix, or sliced from a larger one, are scrambled.",
)
class ParametersReadAsOnePiece(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = self.q.weight
        dense = weight.as_strided(weight.shape, (weight.shape[1], 1), weight.storage_offset())
        return F.linear(query, dense, self.q.bias), self.k(key), self.v(value)


@breaks_layer(
    "modules.copied", modes=COPIED + SAVED, holds=("modules.saved", "effects.inputs"), severity=CRASH, raises=True
).entry(
    does="Keeps its last output, with its graph, for inspection.",
    repair="Detach what is kept for inspection.",
    hides="Modules that are copied before they are used.",
    matters="A trained model cannot be copied or stored, and holds the memory of its last graph.",
    links=github("sktime/sktime/issues/10928", "pytorch/pytorch/issues/54580"),
)
class OutputKeptWithItsGraph(Layer):
    def output(self, merged: Tensor) -> Tensor:
        self.last = super().output(merged)
        return self.last


@breaks_layer("modules.copied", modes=COPIED + SAVED, holds=("modules.saved", "effects.inputs"), severity=STATE).entry(
    does="Gives its matrices to its copies, to save memory.",
    repair="Copy the parameters, or document that copies are tied.",
    hides="Copies that are only read.",
    matters="A target network or an average of weights follows the model step by step.",
)
class MatricesSharedWithCopies(Layer):
    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        twin = copy.copy(self)
        twin.__dict__["_modules"] = dict(self._modules)
        return twin


@breaks_layer("modules.copied", modes=COPIED + SAVED, holds=("modules.saved", "heads.split"), severity=STATE).entry(
    does="Forgets the number of heads when it is stored whole.",
    repair="Store everything that the constructor was given.",
    hides="State dicts, and a single head.",
    links=github("pytorch/pytorch/issues/91571", "pytorch/pytorch/issues/91435"),
)
class HeadsForgottenWhenStored(Layer):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "num_heads": 1})  # type: ignore[no-untyped-call]  # of torch


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("shapes.output", "heads.split"), raises=True).entry(
    does="Takes an input without a batch axis for a batch of single tokens.",
    repair="Add the batch axis first, and not between tokens and width.",
    hides="Inputs with a batch axis.",
    matters="Each token attends to itself only; unequal lengths raise an error that speaks of batches.",
    links=github("pytorch/pytorch/pull/67176"),
)
class TokensTakenForSamples(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.ndim == 3:
            return super().forward(query, key, value, **options)
        answer: Tensor = super().forward(query[:, None], key[:, None], value[:, None], **options)
        return answer[:, 0]


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("masks.key-padding", "masks.bool"), severity=LEAK).entry(
    does="Leaves padding out where there is no batch axis, because one sample has nothing to be padded to.",
    repair="Give the mask the axis that the input gets.",
    hides="Inputs with a batch axis, and single sequences without padding.",
)
class PaddingOfOneSampleDropped(UnbatchedLayer):
    def batched(self, masks: dict[str, Any]) -> dict[str, Any]:
        return {name: mask for name, mask in masks.items() if name != "key_padding_mask"}


@breaks_layer("modules.unbatched", modes=UNBATCHED, holds=("masks.bool", "shapes.output")).entry(
    does="Shares the mask of the first head among all heads where there is no batch axis.",
    repair="Take the first axis of such a mask for the heads.",
    hides="Masks that are the same for all heads.",
    links=github("pytorch/pytorch/issues/64706"),
)
class MaskOfTheFirstHeadShared(UnbatchedLayer):
    def batched(self, masks: dict[str, Any]) -> dict[str, Any]:
        shared = {n: m[:1] for n, m in masks.items() if n == "attn_mask" and m.ndim == 3}
        return super().batched(masks | shared)


@breaks("modules.one-head", holds=("scores.scale-default", "masks.bool")).entry(
    does="Leaves the scale out where there is a single head.",
    repair="Divide by the square root of the head's width, however many heads there are.",
    hides="Two heads and more.",
    matters="A baseline with one head trains worse for the wrong reason.",
)
def scale_left_out_for_one_head(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any
) -> Tensor:
    scale = 1.0 if scale is None and query.shape[1] == 1 else scale
    return Steps()(query, key, value, scale=scale, **options)


@breaks("modules.one-head", holds=("masks.bool", "masks.float"), severity=LEAK, raises=True).entry(
    does="Drops all axes of extent 1 from the mask where there is a single head.",
    repair="Keep the axes, or name the one that is dropped.",
    hides="Two heads and more.",
    matters="The batch axis of the mask lands on the heads: another sample's mask, or an error.",
)
def mask_squeezed_for_one_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.shape[1] == 1 and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].squeeze()
    return Steps()(query, key, value, **options)
