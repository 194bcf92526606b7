# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = [
#     "sdpa",
#     "sdpa_math",
#     "sdpa_flash",
#     "flex",
#     "mha",
#     "mha_weights",
#     "mha_averaged",
#     "mha_length_first",
#     "mha_kdim_vdim",
#     "mha_fast_path",
#     "mha_functional",
# ]
# ///
"""Torch: its attention by kernel, path and mode, as the suite judges them by default."""

from dataclasses import replace

from attention_conformance.implementations.builtin.flex import EAGER
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS

BY_NAME = {each.name: each for each in (*TORCH_OPS, *TORCH_MODULES)}
sdpa, sdpa_math, sdpa_flash = (BY_NAME[f"torch.sdpa{each}"] for each in ("", ".math", ".flash"))
flex = replace(EAGER, claims=replace(EAGER.claims, dtypes=("float64", "float32", "bfloat16")))
mha, mha_weights, mha_averaged = (BY_NAME[f"torch.mha{each}"] for each in ("", ".weights", ".averaged"))
mha_length_first, mha_kdim_vdim = BY_NAME["torch.mha.length-first"], BY_NAME["torch.mha.kdim-vdim"]
mha_fast_path, mha_functional = BY_NAME["torch.mha.fast-path"], BY_NAME["torch.mha.functional"]
__all__ = [
    "flex",
    "mha",
    "mha_averaged",
    "mha_fast_path",
    "mha_functional",
    "mha_kdim_vdim",
    "mha_length_first",
    "mha_weights",
    "sdpa",
    "sdpa_flash",
    "sdpa_math",
]
