"""The entries of the kernels in Triton and Pallas, and why there is none where nothing can run them."""

import os
from typing import Any

from attention_conformance.implementations.adapters.jax_op import jax_op
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.optional import optional

torch, triton, jax = optional("torch"), optional("triton"), optional("jax")
TRITON, PALLAS = "inhouse.triton", "inhouse.pallas"
DTYPES = ("float32", "bfloat16", "float16")
"""Their sums are in float32, so that float64 is not claimed."""
FEATURES = frozenset(
    {
        *(Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH, Feature.GROUPED),
        *(Feature.SCALE, Feature.CAUSAL, Feature.WINDOW, Feature.SOFTCAP, Feature.QUERY_START),
        *(Feature.LOG_SUM_EXP, Feature.GRADIENTS, Feature.EMPTY_SIZES),
    }
)
MOST = 80_000
"""Scores of a case: more cost the interpreter minutes."""


def small_enough(case: Case) -> Case | Unsupported:
    """The fit of a kernel that is interpreted."""
    s = case.sizes
    if s.batch * s.num_heads * s.query_length * s.key_length > MOST and not torch.cuda.is_available():
        return Unsupported("it is interpreted, and more scores take minutes")
    return case


def no_triton() -> str:
    """Why the kernel cannot run here; empty if it can. Triton itself reads the variable when kernels are made."""
    if not triton:
        return "Triton is not installed: pip install 'attention-conformance[triton]'"
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "without a GPU, Triton runs where TRITON_INTERPRET=1 is set"
    return ""


def no_pallas() -> str:
    """Why the kernel cannot run here; empty if it can."""
    return "" if jax else "JAX is not installed: pip install 'attention-conformance[jax]'"


def of_triton() -> Implementation:
    """The kernel of Triton.

    Raises:
        ModuleNotFoundError: Triton is not installed.
    """
    from attention_conformance.implementations.builtin.triton_flash import attention

    claims = Claims(Scope.OP, FEATURES | {Feature.VIEWS}, dtypes=DTYPES, fit=small_enough)
    about = "a flash kernel in Triton; interpreted where there is no GPU, minutes for each dtype"
    return Implementation(TRITON, claims, torch_op(attention, extras=("log_sum_exp",)), about)


def of_pallas() -> Implementation:
    """The kernel of Pallas."""
    claims = Claims(Scope.OP, FEATURES, dtypes=DTYPES, fit=small_enough)
    about = "a flash kernel in Pallas; interpreted where JAX has no accelerator, minutes for each dtype"
    return Implementation(PALLAS, claims, jax_op(_in_pallas, extras=("log_sum_exp",)), about)


def _in_pallas(*inputs: Any, **options: Any) -> Any:
    """Imports JAX, which takes a second, when it is called."""
    from attention_conformance.implementations.builtin.pallas_flash import attention

    return attention(*inputs, **options)
