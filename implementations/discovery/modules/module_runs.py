"""Runs of a module class: how it is built for a problem, called, and what is taken of its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from attention_conformance.implementations.adapters.mha_interface import build_mha
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import TorchModule, in_mode, torch_module
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.built_otherwise import with_options
from attention_conformance.implementations.discovery.modules.constructor_names import Size
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.value_widths import of_width
from attention_conformance.implementations.discovery.signatures import of_constructor, takes_any
from attention_conformance.spec.problem import Problem


def module_run(
    make: Constructor,
    call: Callable[[nn.Module, Tensors, Problem], Any],
    *,
    extras: Mapping[int, str] | None = None,
    evaluating: bool = False,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> TorchModule:
    """A `run` for a module class.

    Args:
        make: how it is built.
        call: how it is called, a `ModuleCall`.
        extras: what its answer has after the output: position -> name in `Result`. Other parts are ignored.
        evaluating: whether it is put into evaluation mode.
        context: entered around each forward call.
    """
    build, named = partial(built_for, make, evaluating), extras or {}
    chosen = Chosen(call, tuple(named))
    run = torch_module(build, chosen, make.find_places, extras=tuple(named.values()), context=context)
    return replace(run, of_length=make.window is Size.WINDOW, of_options=make.of_problem is not None)


def built_for(make: Constructor, evaluating: bool, problem: Problem) -> nn.Module:
    """A module of the sizes of a problem, in its mode."""
    given = problem.num_kv_heads != problem.num_heads and not make.kv_heads
    groups = {"num_kv_heads": problem.num_kv_heads} if given else {}
    make = replace(make, tokens=problem.query.shape[-2]) if make.window is Size.WINDOW else make
    make = make if make.of_problem is None else with_options(make, make.of_problem(problem))
    if problem.extension.zero_attn and not _offers_zero_attn(make):  # it always has a key of zeros
        problem = problem.but(extension=replace(problem.extension, zero_attn=False))
    return in_mode(build_mha(of_width(make, problem), **groups)(problem), not evaluating)


def _offers_zero_attn(make: Constructor) -> bool:
    signature = of_constructor(make.kind)
    return "add_zero_attn" in signature.parameters or takes_any(signature, inspect.Parameter.VAR_KEYWORD)


def with_groups(make: Constructor) -> Constructor:
    """The same, and whether fewer heads of keys and values in its settings change the shapes of its parameters."""
    if not make.settings or make.kv_heads or "num_kv_heads" in make.spelled:
        return make
    outcomes = [safe_call(partial(built, make, **groups)).value for groups in ({}, {"num_kv_heads": 1})]
    shapes = [[(n, p.shape) for n, p in each.named_parameters()] for each in outcomes if each is not None]
    return replace(make, grouped=len(shapes) == 2 and shapes[0] != shapes[1])
