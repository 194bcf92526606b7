"""Hostile and broken candidates, a line each: a reason where they fail; a right one next to them notices nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.safe_call import CandidateError, answer
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.worker import door
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis import diagnose, failing_checks
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.post_run import bad_ends
from attention_conformance.tests.harness.run.run_records import weight_map
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.harness.run.smoke import smoke
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.selftest.worker.test_elsewhere import BLOCKING
from attention_conformance.tests.selftest.worker.test_hostile import processes

CLAUSE = "shapes.coincident"
START = """
import atexit, ctypes, gc, locale, mmap, os, signal, sys, tempfile, threading, time, warnings
import numpy as np
from attention_conformance import Claims, Feature, Implementation, Scope, Unsupported, numpy_op

def attend(query, key, value):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

CORE = frozenset({{Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH}})

def made(name, function, **claims):
    return Implementation(name, Claims(Scope.OP, CORE, dtypes=("float32",), **claims), numpy_op(function))

def change_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)

class Silent(Exception):
    def __str__(self):
        raise SystemExit(0)
    __repr__ = __str__

class Nameless(type):
    __name__ = property(lambda self: 1 / 0)

class NamelessError(Exception, metaclass=Nameless):
    pass

class Odd:
    __str__ = __repr__ = lambda self: 1 / 0

    def __call__(self, query, key, value):
        return attend(query, key, value)

{module}

def attention(query, key, value):
    {call}
    return attend(query, key, value)

attention = locals().get("instead") or made("hostile", attention, **locals().get("claims", {{}}))
"""
DYING = {
    "division by zero in C": ("", "ctypes.CDLL(None).div(1, 0)", "died of SIGFPE"),
    "overflow of the stack in C": (
        "@ctypes.CFUNCTYPE(None)\ndef deep(): deep()",
        "sys.setrecursionlimit(10**9); deep()",
        "died of SIGSEGV",
    ),
    "a mapped file that is cut": (
        "",
        "file = tempfile.TemporaryFile(); file.truncate(99); m = mmap.mmap(file.fileno(), 99); file.truncate(0); m[0]",
        "died of SIGBUS",
    ),
    "a thread in C": (
        "",
        "threading.Thread(target=ctypes.string_at, args=(0,)).start(); time.sleep(9)",
        "died of SIGSEGV",
    ),
    "a fork that outlives it": ("", "if os.fork(): os._exit(3)\n    time.sleep(300)", "with exit status 3"),
    "a fork that answers, too": ("", "os.fork()", "to the request with number"),
    "a timer": ("signal.setitimer(signal.ITIMER_REAL, 0.01)", "time.sleep(9)", "died of SIGALRM"),
    "what messages are made with": (
        "import json",
        "json.JSONEncoder.encode = None",
        "the candidate has changed what its process needs to answer: TypeError",
    ),
    "functions of the system": ("os.getcwd = None", "", "left its process unusable: TypeError: 'NoneType' object"),
    "a fit that aborts": ("claims = {'fit': lambda case: os.abort()}", "", "died of SIGABRT"),
    "an attribute that exits": (
        "class Exits(Odd):\n    def __getattr__(self, name): os._exit(3)\ninstead = Exits()",
        "",
        "ended its process with exit status 3",
    ),
}
LATE = {
    "a pause in C with every signal blocked": (
        "",
        "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); ctypes.PyDLL(None).pause()",
    ),
    "stopped": ("", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "a message without end": (
        "class Endless(Exception):\n    def __str__(self): time.sleep(1000)",
        "raise Endless",
    ),
    "a fit without end": ("claims = {'fit': lambda case: time.sleep(1000)}", ""),
}
CHANGED = "the candidate has changed builtins.i"
REFUSED = {
    "recursion": ("def deep(): deep()", "deep()", "raised RecursionError"),
    "a message that exits": ("", "raise Silent", "raised Silent: no message"),
    "an exception without a name": ("", "raise NamelessError('why')", "raised NamelessError: why"),
    "all modules": ("", "sys.modules.clear()", "raised AttributeError"),
    "built-in functions": ("import builtins", "builtins.len = builtins.isinstance = None", CHANGED),
    "built-in functions, by a right answer": (
        "import builtins",
        "right = attend(query, key, value); builtins.len = builtins.isinstance = builtins.int = None; return right",
        CHANGED,
    ),
    "built-in functions that are gone": (
        "import builtins",
        "del builtins.len, builtins.int, builtins.Exception",
        "the candidate has changed builtins.Exception, builtins.int, builtins.len",
    ),
    "an async function": (
        "async def later(query, key, value): return attend(query, key, value)\ninstead = made('hostile', later)",
        "",
        "a NumPy array was expected, got coroutine",
    ),
    "functions of NumPy": ("", "np.ndarray = np.frombuffer = None", "raised TypeError: isinstance() arg 2"),
    "a trace that raises": ("def no(*_): raise RuntimeError('no')", "sys.settrace(no)", "raised RuntimeError: no"),
    "its input": ("", "input()", "raised EOFError"),
    "nothing": ("", "return None", "a NumPy array was expected, got NoneType"),
    "itself": ("own = []; own.append(own)", "return own", "a NumPy array was expected, got list"),
    "objects": ("", "return np.array([object()])", "returned output in object, not in real numbers"),
    "complex numbers": ("", "return attend(query, key, value) + 0j", "not in real numbers"),
    "long numbers": ("", "return attend(query, key, value).astype(np.longdouble)", "which no message can hold"),
    "a million times the memory": ("", "return np.broadcast_to(np.float32(0), (10**7, 10**6))", "arrays of 4000"),
    "a fit that exits": ("claims = {'fit': lambda case: sys.exit(0)}", "", "raised SystemExit: 0"),
    "a fit of a billion queries": (
        "claims = {'fit': lambda case: case.sized(query_length=10**9)}",
        "",
        "fit returned a case that cannot be run: the case has an array of",
    ),
    "a fit that returns a word": ("claims = {'fit': lambda case: 'yes'}", "", "fit returned str"),
}
HARMLESS = {
    "a folder that is gone": ("change_folder()", ""),
    "a folder that is gone in each call": ("", "change_folder()"),
    "no environment": ("os.environ.clear()", ""),
    "another locale": ("locale.setlocale(locale.LC_ALL, 'C.UTF-8')", ""),
    "ignored signals": (
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]",
        "",
    ),
    "deep recursion allowed": ("sys.setrecursionlimit(10**9)", ""),
    "little recursion allowed": ("sys.setrecursionlimit(200)", ""),
    "traced": ("sys.settrace(lambda *_: None)", ""),
    "no collection of garbage": ("gc.disable(); gc.freeze()", ""),
    "warnings as errors": ("warnings.simplefilter('error')", "warnings.warn('mine')"),
    "NumPy's errors raised": ("np.seterr(all='raise')", ""),
    "no streams": ("sys.stdout = sys.stderr = sys.excepthook = None", ""),
    "a hundred million characters": ("", "for _ in range(10): print('x' * 10**7)"),
    "the suite's modules": ("", "sys.modules.update({n: None for n in sys.modules if n.startswith('attention_c')})"),
    "a thread that raises": ("", "threading.Thread(target=lambda: 1 / 0).start()"),
    "a thread that stays": ("threading.Thread(target=time.sleep, args=(300,)).start()", ""),
    "an abort at its end": ("atexit.register(os.abort)", ""),
    "a nameless object": ("instead = Odd()", ""),
    "built-in functions of its own": (
        "import builtins; builtins.print = builtins.open = None; builtins.sum = lambda *many: sorted(many[0])[0]",
        "",
    ),
    "a built-in function that calls itself equal": (
        "import builtins\nclass Sum:\n    __eq__ = lambda self, other: True\n    __call__ = lambda self, *all: all[0]",
        "builtins.sum = Sum()",
    ),
    "nowhere to import from": ("sys.path.clear(); sys.meta_path.clear()", ""),
    "a clock that stands still": ("time.monotonic = time.time = time.sleep = lambda *_: 0.0", ""),
    "a thread in C that waits": (
        "c = ctypes.CDLL(None); c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, c.pause, None)",
        "",
    ),
    "JSON of its own": ("import json", "json.dumps = lambda *args, **more: 'x'"),
    "a closed file limit": ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))", ""),
}
ENDING = {
    "an abort": ("atexit.register(os.abort)", "died of SIGABRT"),
    "an exit status": ("atexit.register(os._exit, 3)", "ended its process with exit status 3"),
    "a destructor that exits": ("class Exits:\n    def __del__(self): os._exit(9)\nkept = Exits()", "exit status 9"),
    "an exception": ("atexit.register(lambda: 1 / 0)", ""),
    "a closed stream": ("sys.stdout.write('kept'); atexit.register(os.close, 1)", ""),
    "nothing": ("", ""),
}
PLAIN = scaled_dot_product_attention
PROBLEM = build(Case(), "float32")
ANSWERS: dict[str, Callable[[torch.Tensor], object]] = {
    "complex": lambda right: right.to(torch.complex64),
    "nested": lambda right: torch.nested.nested_tensor(list(right)),
    "sparse": lambda right: right.to_sparse(),
    "compressed": lambda right: right[0, 0].to_sparse_csr(),
    "without numbers": lambda right: right.to("meta"),
    "quantised": lambda right: torch.quantize_per_tensor(right, 0.1, 0, torch.qint8),
    "float8": lambda right: right.to(torch.float8_e4m3fn),
    "a text": lambda right: "x" * 10**7,
}
BACKWARD = """
import os, time, torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from attention_conformance import Claims, Feature, Implementation, Scope, torch_op

class Hostile(torch.autograd.Function):
    @staticmethod
    def forward(context, output):
        return output.clone()

    @staticmethod
    def backward(context, gradient):
        {}

CORE = frozenset({{Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.GRADIENTS}})
attention = Implementation("hostile", Claims(Scope.OP, CORE), torch_op(lambda q, k, v: Hostile.apply(sdpa(q, k, v))))
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two losses are as good as three: one as it is imported, and one in its first clause."""
    monkeypatch.setattr(door, "DEATHS", 2)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without torch, which starts soon."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "sitecustomize.py").write_text(BLOCKING)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="module")
def right(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Implementation]:
    """A candidate that is called between the hostile ones."""
    implementation = made(tmp_path_factory.mktemp("right"), python, "", "")
    yield implementation
    end_process(implementation)


def made(folder: Path, python: str, module: str, call: str, deadline: float = 60.0) -> Implementation:
    file = folder / "hostile.py"
    file.write_text(START.format(module=module, call=call or "pass"))
    return isolated_candidate(f"{file}:attention", {}, deadline=deadline, python=python, memory=2**31)


def verdict(right: Implementation, hostile: Implementation, clause: str = CLAUSE) -> Verdict:
    """That of the hostile candidate; the right one passes afterwards, and nothing is left running."""
    try:
        (own,) = run(hostile, (clause,), ("float32",))
    finally:
        end_process(hostile)
    (other,) = run(right, (CLAUSE,), ("float32",))
    assert other.status is Status.PASS
    assert isinstance(right.run, Remote)
    assert not right.run.door.deaths
    return own


@pytest.mark.parametrize(("module", "call", "words"), DYING.values(), ids=DYING)
def test_who_dies(python: str, right: Implementation, tmp_path: Path, module: str, call: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call))
    assert found.failure is not None
    assert found.failure.kind is FailureKind.DIED
    assert words in found.failure.message
    assert not processes(str(tmp_path))


@pytest.mark.parametrize(("module", "call"), LATE.values(), ids=LATE)
def test_who_hangs(python: str, right: Implementation, tmp_path: Path, module: str, call: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call, deadline=0.3))
    assert found.failure is not None
    assert found.failure.kind is FailureKind.TIMED_OUT


@pytest.mark.parametrize(("module", "call", "words"), REFUSED.values(), ids=REFUSED)
def test_who_is_refused(python: str, right: Implementation, tmp_path: Path, module: str, call: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call))
    assert found.failure is not None
    assert found.failure.kind is not FailureKind.DIED
    assert words in found.failure.message


@pytest.mark.parametrize(("module", "call"), HARMLESS.values(), ids=HARMLESS)
def test_who_conforms(python: str, right: Implementation, tmp_path: Path, module: str, call: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call))
    assert (found.status, found.message) == (Status.PASS, "")


@pytest.mark.parametrize(("module", "words"), ENDING.values(), ids=ENDING)
def test_who_dies_at_its_end(python: str, right: Implementation, tmp_path: Path, module: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, f"{module}\nprint('loaded')", ""), "effects.global-state")
    failed = found.failure is not None and found.failure.kind is FailureKind.DIED
    assert failed is bool(words)
    assert words in found.message
    assert (found.status is Status.PASS) is not failed


def test_a_bad_end_fails_whatever_was_selected(python: str, tmp_path: Path) -> None:
    hostile = made(tmp_path, python, "atexit.register(os._exit, 3)", "")
    verdicts = run(hostile, (CLAUSE,), ("float32",))
    (end,) = bad_ends([hostile], verdicts, RunSettings())
    assert end.failure is not None
    assert (end.clause, end.failure.kind) == ("effects.global-state", FailureKind.DIED)
    assert not list(bad_ends([hostile], [*verdicts, end], RunSettings()))


def test_who_refuses_all_but_one_case(python: str, right: Implementation, tmp_path: Path) -> None:
    refusal = "claims = {'fit': lambda case: Unsupported('\\x1b[2J\\ud800' + 'x' * 10**6)}"
    found = verdict(right, made(tmp_path, python, refusal, ""))
    assert found.status is Status.NOT_CLAIMED
    assert found.reason.isprintable()
    assert len(found.reason) < 400


def test_a_signature_that_is_none_is_read_from_the_code() -> None:
    def attention(query: Any, key: Any, value: Any, *, scale: float = 1.0) -> None: ...

    attention.__signature__ = "x"  # type: ignore[attr-defined]
    found = signature_of(attention).parameters
    assert list(found) == ["query", "key", "value", "scale"]
    assert found["scale"].default == 1.0


def test_what_exits_as_it_is_looked_at_cannot_be_used(python: str, tmp_path: Path) -> None:
    exiting = "class Exits(Odd):\n    __signature__ = property(lambda self: sys.exit(0))\ninstead = Exits()"
    with pytest.raises(TargetError, match="it raised SystemExit when it was first called"):
        made(tmp_path, python, exiting, "")


def test_a_fit_that_fails_is_a_failure_of_its_clause_alone() -> None:
    claims = Claims(Scope.OP, frozenset({Feature.CORE}), fit=lambda case: sys.exit(0))
    implementation = Implementation("hostile", claims, torch_op(PLAIN))
    (found,) = run(implementation, (CLAUSE,), ("float32",))
    assert found.failure is not None
    assert found.failure.message == "raised SystemExit: 0"
    assert smoke(implementation, "cpu") == ()
    diagnose(implementation, failing_checks([found]), "cpu", ["float32"])
    assert weight_map(implementation, "cpu").source == "its fit failed: raised SystemExit: 0"


@pytest.mark.parametrize("made", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_array_of_real_numbers_is_refused(made: Callable[[torch.Tensor], object]) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return made(scaled_dot_product_attention(q, k, v))

    with pytest.raises(CandidateError):
        answer(torch_op(attention), PROBLEM.forward_only(), "cpu")


def test_a_sign_that_is_a_mark_of_the_tensor_is_read() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        right = scaled_dot_product_attention(q, k, v)
        marked = torch.complex(right, -right).conj().imag
        assert marked.is_neg()
        return marked

    marked, plain = (torch_op(each)(PROBLEM.forward_only(), "cpu").output for each in (attention, PLAIN))
    assert np.array_equal(marked, plain)


@pytest.mark.parametrize(
    ("body", "kind"),
    [("os.abort()", FailureKind.DIED), ("time.sleep(1000)", FailureKind.TIMED_OUT)],
    ids=["dies", "hangs"],
)
def test_what_happens_in_backward(right: Implementation, tmp_path: Path, body: str, kind: FailureKind) -> None:
    file = tmp_path / "hostile.py"
    file.write_text(BACKWARD.format(body))
    hostile = isolated_candidate(f"{file}:attention", {}, deadline=1.0)
    found = verdict(right, hostile, "gradients.value")
    assert found.failure is not None
    assert found.failure.kind is kind
