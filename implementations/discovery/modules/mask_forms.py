"""Attention masks of a problem in the form in which a module takes them."""

from __future__ import annotations

import torch

from attention_conformance.implementations.adapters.mha_interface import polarised
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Problem

WHOLE = (MaskForm.FULL, MaskForm.ONE_HEAD)
"""Forms that a mask has whatever a problem gives."""


def in_form(
    form: MaskForm, mask: torch.Tensor, given: torch.Tensor | None, problem: Problem, polarity: Polarity
) -> torch.Tensor:
    """The mask as `mask_options` gives it, (B * H, Lq, Lk) or (Lq, Lk), in a form.

    `given` is that of the problem; None where the mask is its triangle.
    """
    if form in WHOLE:
        return _with_heads(mask, problem, form is MaskForm.ONE_HEAD)
    if given is None:
        return mask
    if form in (MaskForm.SAMPLE, MaskForm.LENGTHS_FIRST) and mask.ndim == 3:
        of_samples = mask.view(-1, problem.num_heads, *mask.shape[1:])[:, 0]
        return of_samples if form is MaskForm.SAMPLE else of_samples.permute(1, 2, 0)
    if form in (MaskForm.HEADS, MaskForm.ONE_SAMPLE) and mask.ndim == 3:
        of_heads = mask[: problem.num_heads]
        return of_heads if form is MaskForm.HEADS else of_heads[None]
    same = form is MaskForm.SHARED or (form is MaskForm.EITHER and given.ndim == 2)
    return polarised(given, polarity) if same else mask


def _with_heads(mask: torch.Tensor, problem: Problem, one: bool) -> torch.Tensor:
    """(B, H, Lq, Lk), or (1, 1, Lq, Lk) for one of all; (B, 1, Lq, Lk) where it is of `one` head."""
    samples = problem.query.shape[0]
    whole = mask.view(samples, problem.num_heads, *mask.shape[1:]) if mask.ndim == 3 else mask[None, None]
    return whole[:, :1].expand(samples, -1, -1, -1) if one else whole
