"""Files that import more than their attention needs, or from elsewhere in their project, are loaded and judged."""

import sys
from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.targets.loading import TargetError, load_target
from attention_conformance.tests.selftest.discovery.making import assert_conforms, write

LOGGER = """
import torch
import no_logger
from no_typing import Float
from no_data.sets import Digits
from torch._six import inf  # it is not there any more

run = no_logger.init(project="mine")
BEST = Float[torch.Tensor, "b"] | None

class Net(no_logger.Module):
    def __init__(self):
        super().__init__()

@no_logger.compile
def fast(query, key, value):
    return value

def logs(query, key, value):
    no_logger.log(query)
    return value

def waits(query, key, value):
    return value if run else query

def f(query: Float, key, value):
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that is not the current one."""
    write(tmp_path, "train.py", LOGGER)
    return tmp_path


def test_a_function_that_does_not_use_them_is_judged(project: Path) -> None:
    implementation = candidate(f"{project / 'train.py'}:f", {})
    assert "loaded without 'no_data', which is not installed" in implementation.stated
    assert_conforms(implementation)
    assert not [name for name in sys.modules if name.startswith("no_")]


@pytest.mark.parametrize("name", ["fast", "logs", "waits", "Net", "nowhere"])
def test_what_needs_them_is_refused(project: Path, name: str) -> None:
    with pytest.raises(TargetError, match=r"No module named 'no_logger'|no torch\.nn\.Module"):
        candidate(f"{project / 'train.py'}:{name}", {})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("from ..tools.helping import value", "tools/helping.py"),
        ("from .helping import value", "parts/helping.py"),
        ("from tools.helping import value", "tools/helping.py"),
        ("from parts.helping import value", "parts/helping.py"),
    ],
)
@pytest.mark.parametrize("package", ["", "raise ImportError('not installed')\n"])
def test_imports_from_elsewhere_in_the_project(tmp_path: Path, text: str, place: str, package: str) -> None:
    if package:
        write(tmp_path, "project/parts/__init__.py", package)
    write(tmp_path, f"project/{place}", "value = 3\n")
    write(tmp_path, "project/parts/mine.py", f"{text}\n\ndef f():\n    return value\n")
    loaded = load_target(f"{tmp_path / 'project/parts/mine.py'}:f")
    assert callable(loaded)
    assert loaded() == 3


def test_what_is_defined_after_a_line_that_fails(tmp_path: Path) -> None:
    text = "def f(query, key, value):\n    return ((query @ key.mT) * query.shape[-1] ** POWER).softmax(-1) @ value\n"
    acts = f"open({str(tmp_path / 'acted')!r}, 'w')\n"
    write(tmp_path, "train.py", f"import torch\n\ntext = open('absent.txt').read()\nPOWER = -0.5\n{acts}\n\n{text}")
    implementation = candidate(f"{tmp_path / 'train.py'}:f", {})
    assert implementation.stated[0].startswith("loaded without its line 3, which raised FileNotFoundError")
    assert_conforms(implementation)
    assert not (tmp_path / "acted").exists()
    with pytest.raises(TargetError, match="FileNotFoundError"):
        load_target(f"{tmp_path / 'train.py'}:text")


LIGHTNING = """
import no_lightning as pl
from torch import nn

class f(pl.LightningModule):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.inner = Mha(d_model, n_heads)
    def forward(self, x):
        return self.inner(x, x, x)[0]

class Mha(nn.MultiheadAttention):
    def __init__(self, width, heads):
        super().__init__(width, heads, batch_first=True)
"""


def test_a_module_for_training_is_one_of_torch(tmp_path: Path) -> None:
    write(tmp_path, "lit.py", LIGHTNING)
    assert_conforms(candidate(f"{tmp_path / 'lit.py'}:f", {}))
