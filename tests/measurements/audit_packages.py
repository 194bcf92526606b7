"""Measures the auditor and `check` on other packages as they are: how much of what their adapters claim is found.

`make audit-packages`, with PATTERN="keras* onnx*" for some: each function or class is looked at where its package is
installed, with torch, which the auditor needs, and without its adapter, whose claims are then compared.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.auditor.audit import LostError, audit_apart
from attention_conformance.implementations.discovery.auditor.claims import features
from attention_conformance.implementations.discovery.auditor.findings import Facts
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature
from attention_conformance.tests.cli.audit_command import ORACLE
from attention_conformance.tests.cli.matrix_packages import (
    CACHE,
    FOLDER,
    ROOT,
    Package,
    PackageError,
    environment,
    packages,
)
from attention_conformance.tests.measurements.audit_compared import DETECTED, KNOWN, NEEDS, UNDETERMINED, WRONG, scores

AUDITED = FOLDER / "audited.json"
SECONDS = 120.0
"""For an answer, and LIMIT for all of them: some compile each shape."""
LIMIT = 1800.0
CONVERTED = "which bool-mask"
"""What True means to a function behind an adapter is not what the adapter claims."""
HUGGING_FACE = "transformers.models"
AS_THEY_ARE: Mapping[str, str] = {
    "flax_functions.linen": "flax.linen:dot_product_attention",
    "flax_functions.nnx": "flax.nnx:dot_product_attention",
    "jax_functions.jax_nn": "jax.nn:dot_product_attention",
    **dict.fromkeys(("keras_on_jax.sdpa", "keras_on_numpy.sdpa"), "keras.ops:dot_product_attention"),
    "keras_on_torch.sdpa": "keras.ops:dot_product_attention",
    "local_attention_windows.causal": "local_attention:LocalAttention",
    "memory_efficient_functions.regular": ("memory_efficient_attention_pytorch.memory_efficient_attention:attention"),
    "memory_efficient_functions.chunked": (
        "memory_efficient_attention_pytorch.memory_efficient_attention:memory_efficient_attention"
    ),
    "mlx_fast.fused": "mlx.core.fast:scaled_dot_product_attention",
    "paddle_sdpa.sdpa": "paddle.nn.functional:scaled_dot_product_attention",
    "tinygrad_sdpa.sdpa": "tinygrad:Tensor.scaled_dot_product_attention",
    "torch_attention.sdpa": "torch.nn.functional:scaled_dot_product_attention",
    "torch_attention.flex": "torch.nn.attention.flex_attention:flex_attention",
    "torch_attention.mha_weights": "torch.nn:MultiheadAttention",
    "torch_attention.mha_functional": "torch.nn.functional:multi_head_attention_forward",
    "torchscale_attention.Attention": "torchscale.component.multihead_attention:MultiheadAttention",
    "torchtune_attention.Attention": "torchtune.modules:MultiHeadAttention",
    "transformers_functions.sdpa": "transformers.integrations.sdpa_attention:sdpa_attention_forward",
    "transformers_functions.bert": f"{HUGGING_FACE}.bert.modeling_bert:eager_attention_forward",
    "transformers_functions.gpt2": f"{HUGGING_FACE}.gpt2.modeling_gpt2:eager_attention_forward",
    "transformers_functions.llama": f"{HUGGING_FACE}.llama.modeling_llama:eager_attention_forward",
    "transformers_functions.gemma2": f"{HUGGING_FACE}.gemma2.modeling_gemma2:eager_attention_forward",
    "transformers_sinks.gpt_oss": f"{HUGGING_FACE}.gpt_oss.modeling_gpt_oss:eager_attention_forward",
    "transformers_modules.Llama": f"{HUGGING_FACE}.llama.modeling_llama:LlamaAttention",
    "transformers_modules.Qwen3": f"{HUGGING_FACE}.qwen3.modeling_qwen3:Qwen3Attention",
    "transformers_modules.Bart": f"{HUGGING_FACE}.bart.modeling_bart:BartAttention",
    "transformers_modules.Whisper": f"{HUGGING_FACE}.whisper.modeling_whisper:WhisperAttention",
    "transformers_modules.CLIP": f"{HUGGING_FACE}.clip.modeling_clip:CLIPAttention",
    "transformers_t5.T5": f"{HUGGING_FACE}.t5.modeling_t5:T5Attention",
    "x_transformers_attend.attend": "x_transformers.attend:Attend",
}
"""What stands behind an adapter, by the names of its file and of the implementation."""


@dataclass(frozen=True)
class Found:
    """What was found of one, next to what its adapter claims.

    Attributes:
        agree: so many claims are found.
        differ: claims that something else is found of.
        unseen: claims that nothing certain is found of.
        beyond: features that are found and not claimed.
        refused: why nothing could be found.
    """

    agree: int = 0
    differ: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Audited:
    """What is as its package has it: what `audit` finds, and what `check` claims where there is an adapter."""

    target: str
    audit: Found
    check: Found | None = None


def audited(adapter: str, conventions: Mapping[str, str], target: str) -> Audited:
    """Looks at a target in this environment, and then at what its adapter claims."""
    claimed = candidate(adapter, conventions)  # before, as Keras gets its backend there; its claims are read after
    seen = _refusable(lambda: by_audit(target, claimed))
    return Audited(target, seen, None if target == adapter else _refusable(lambda: by_check(target, claimed)))


def by_audit(target: str, claimed: Implementation) -> Found:
    """What the auditor finds."""
    findings, _ = audit_apart(target, ORACLE, "cpu", SECONDS, None)
    return compared_with(claimed, Facts.of(findings))


def compared_with(claimed: Implementation, facts: Facts) -> Found:
    """How far the findings are what an adapter claims."""
    listed = [score for score in scores(claimed, facts) if score.claim != CONVERTED]
    agree = sum(score.outcome == DETECTED for score in listed)
    wrong = ((each, each.answer.partition(":")[0]) for each in listed if each.outcome == WRONG)
    differ = [f"{each.claim}: {each.claimed} claimed, {answer}" for each, answer in wrong]
    unseen = [score.claim for score in listed if score.outcome in (UNDETERMINED, KNOWN)]
    return Found(agree, tuple(differ), tuple(unseen), _names(features(facts) - claimed.claims.features))


def by_check(target: str, claimed: Implementation) -> Found:
    """What is claimed of it where it is judged without its adapter."""
    own, wanted = candidate(target, {}).claims, claimed.claims
    answers = dict(own.conventions.items())
    both = wanted.features & own.features
    keys = {key: value for key, value in wanted.conventions.items() if all(need & both for need in NEEDS[key])}
    others = [f"which {key}: {value} claimed, {answers[key]}" for key, value in keys.items() if answers[key] != value]
    fewer = [f"{each}: not claimed" for each in _names(wanted.features - own.features)]
    return Found(len(both) + len(keys) - len(others), (*fewer, *others), (), _names(own.features - wanted.features))


def _names(these: Iterable[Feature]) -> tuple[str, ...]:
    return tuple(sorted(map(str, these)))


def _refusable(found: Callable[[], Found]) -> Found:
    try:
        return found()
    except (TargetError, LostError) as error:
        return Found(refused=str(error))


def rows(package: Package, cache: Path) -> Iterator[tuple[str, Audited]]:
    """Those of a package, each audited in its environment."""
    imported = set() if package.is_worker else _imported(package.file.read_text(encoding="utf-8"))
    for name in package.implementations:
        key, adapter = f"{package.name}.{name}", f"{package.file.relative_to(ROOT)}:{name}"
        if target := AS_THEY_ARE.get(key, adapter if name in imported else ""):
            yield key, _elsewhere(package, cache, adapter, target)


def _elsewhere(package: Package, cache: Path, adapter: str, target: str) -> Audited:
    has_torch = any(each.startswith("torch==") for each in package.dependencies)
    equipped = package if has_torch else replace(package, dependencies=(*package.dependencies, _own_torch()))
    with TemporaryDirectory() as folder:
        (Path(folder) / "attention_conformance").symlink_to(ROOT)
        command = [str(environment(equipped, cache)), "-P", "-m", __spec__.name]
        given = ["--inside", adapter, json.dumps(dict(package.conventions)), target]
        own = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run([*command, *given], cwd=ROOT, env=own, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise PackageError(f"{adapter} was not audited: {last}")
    row = json.loads(done.stdout.splitlines()[-1])
    return Audited(row["target"], Found(**row["audit"]), row["check"] and Found(**row["check"]))


def _own_torch() -> str:
    """The requirement of torch in which the suite itself is installed."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _imported(text: str) -> set[str]:
    """The names of the packages' own that a file imports, and presents as they are."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return {each.asname or each.name for node in nodes for each in node.names}


def main() -> int:
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("pattern", nargs="*", default=["*"])
    parser.add_argument("--environments", type=Path, default=CACHE)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        adapter, conventions, target = given.pattern
        print(json.dumps(asdict(audited(adapter, json.loads(conventions), target))))
        return 0
    found = json.loads(AUDITED.read_text(encoding="utf-8")) if AUDITED.is_file() else {}
    for package in packages():
        if any(fnmatchcase(package.name, pattern) for pattern in given.pattern):
            try:
                found |= {key: asdict(row) for key, row in rows(package, given.environments)}
            except PackageError as error:
                print(error, file=sys.stderr)
            AUDITED.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
