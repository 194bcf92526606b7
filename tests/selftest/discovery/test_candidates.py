"""Candidates: what functions claim by their parameters and a few calls, and what is refused how."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_conformance.implementations.discovery.candidates import candidate, candidates
from attention_conformance.implementations.discovery.functions.functions import ALWAYS
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.conventions import CausalWithMask, EmptyRow, Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.selftest.discovery.making import (
    MASKS,
    OF_TENSORS,
    WRAP,
    Make,
    assert_conforms,
    refused,
    write,
)

LOAD = partial(candidate, settings={})
GRADIENTS = {Feature.GRADIENTS, Feature.MASK_GRADIENT}
EXTRAS = OF_TENSORS | {Feature.WEIGHTS, Feature.LOG_SUM_EXP, Feature.LOG_SUM_EXP_GRADIENT}
SDPA = OF_TENSORS | MASKS | {Feature.CAUSAL, Feature.SCALE, Feature.DROPOUT}
USABLE = "give a function of query, key and value or a module class"
A_TENSOR = "return a tensor, or a tuple that begins with it"
UNCALLED = "it cannot be called with query, key and value of shape (B, H, L, d)"

UNUSABLE = """
class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("no operation is supported")

calls = []

def f(query, key, value):
    calls.append(1)
    open("calls", "w").write("." * len(calls))
    x = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
    return x if len(calls) <= {first} else {change}
"""
MASK_AND_BIAS = """
def f(x, y, z, bias=None, attention_mask=None, causal=False, scale=None):
    assert bias is None or bias.dtype is not torch.bool
    assert attention_mask is None or attention_mask.dtype is torch.bool
    return attend(x, y, z, bias if attention_mask is None else attention_mask, causal, scale)[0]
"""
REQUIRED = """
def f(q, k, v, mask, is_causal, dropout_rate, scale):
    assert dropout_rate == 0.0 and is_causal in (False, True)
    return attend(q, k, v, mask, is_causal, scale)[0]
"""
DROPPING = "def f(q, k, v, dropout=0.5): return F.dropout(attend(q, k, v)[0], dropout)"
PADDING = """
def f(q, k, v, key_padding_mask=None):
    return attend(q, k, v, None if key_padding_mask is None else key_padding_mask[:, None, None])[0]
"""


class TestParameters:
    @pytest.mark.parametrize(
        ("parameters", "features"),
        [
            ("a, b, c", set()),
            ("q, k, v, attn_mask=None", MASKS),
            ("query, key, value, mask=None", MASKS),
            ("Q, K, V, attention_mask=None", MASKS),
            ("xq, xk, xv, *, bias=None", {Feature.FLOAT_MASK, Feature.MASK_GRADIENT}),
            ("q, k, v, attn_bias=None, mask=None", MASKS),
            ("q, k, v, key_padding_mask=None", {Feature.KEY_PADDING}),
            ("q, k, v, is_causal=False", {Feature.CAUSAL}),
            ("q, k, v, causal=False", {Feature.CAUSAL}),
            ("q, k, v, scale=None", {Feature.SCALE}),
            ("q, k, v, dropout_p=0.0, enable_gqa=False, flavour=3", {Feature.DROPOUT}),
            ("q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa", SDPA),
            ("q, k, v, **options", set()),
            ("*inputs, **options", set()),
            ("*inputs", set()),
        ],
    )
    def test_features(self, make: Make, parameters: str, features: set[Feature]) -> None:
        text = f"def f({parameters}):\n    given = locals()\n"
        text += "    return attend(*given.get('inputs', list(given.values())[:3]))[0]"
        assert make(text).claims.features == OF_TENSORS | features

    @pytest.mark.parametrize("text", [MASK_AND_BIAS, REQUIRED, DROPPING, PADDING])
    def test_arguments_go_where_they_belong(self, make: Make, text: str) -> None:
        assert_conforms(make(text))

    @pytest.mark.parametrize(
        "name", ["F.scaled_dot_product_attention", "part", "scripted", "made", "made.attend", "compiled"]
    )
    def test_everything_callable(self, make: Make, name: str) -> None:
        text = """
class Maker:
    def __call__(self, q, k, v, scale=None): return attend(q, k, v, scale=scale)[0]
    def attend(self, q, k, v): return attend(q, k, v)[0]

made = Maker()
part = functools.partial(F.scaled_dot_product_attention, dropout_p=0.0)
compiled = torch.compile(attend, backend="eager")

@torch.jit.script
def scripted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""
        result = make(text, name)
        assert result.name == name.rpartition(".")[2]
        assert_conforms(result)

    def test_of_an_installed_module(self) -> None:
        result = candidate("torch.nn.functional:scaled_dot_product_attention", {})
        assert result.claims.features == SDPA | {Feature.GROUPED}
        assert result.claims.dtypes == ("float64", "float32", "bfloat16", "float16")
        assert result.about == "a function of torch tensors"
        assert_conforms(result)


class TestConventions:
    def test_defaults(self, make: Make) -> None:
        result = make("def f(q, k, v): return attend(q, k, v)[0]").claims
        assert result.scope is Scope.OP
        assert result.conventions.causal_with_mask is CausalWithMask.EITHER
        assert result.conventions.bool_mask is Polarity.MAY_ATTEND

    def test_settings(self, make: Make) -> None:
        text = "def f(q, k, v, mask=None):\n"
        text += "    return attend(q, k, v, ~mask if mask is not None and mask.dtype is torch.bool else mask)[0]"
        result = make(text, bool_mask="masked-out", empty_row="nan")
        assert result.claims.conventions.empty_row_float is EmptyRow.NAN
        assert_conforms(result)

    def test_an_unknown_setting(self, make: Make) -> None:
        with pytest.raises(ValueError, match="no convention is named 'colour'"):
            make("def f(q, k, v): return q", colour="red")

    def test_an_implementation_is_used_as_it_is(self, make: Make) -> None:
        text = "from attention_conformance.implementations.builtin.inhouse import INHOUSE\nf = INHOUSE[2]"
        result = make(text, empty_row="uniform")
        assert result.name == "inhouse.numpy"
        assert result.claims.conventions.empty_row_causal is EmptyRow.UNIFORM
        assert make(text).claims == replace(result.claims, conventions=make(text).claims.conventions)


class TestArrays:
    TEXT = """
def f(q, k, v, mask=None):
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(q.shape[-1] ** -0.5)
    if mask is not None:
        s = np.where(mask, s, -np.inf).astype(s.dtype) if mask.dtype == bool else s + mask
    e = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True) @ v
"""

    def test_conforms(self, make: Make) -> None:
        result = make(self.TEXT)
        assert result.about.startswith("a function of NumPy arrays; bfloat16 not claimed: it answers in float32")
        lost = {Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.EMPTY_SIZES}
        assert result.claims.features == (ALWAYS | MASKS) - lost
        assert result.claims.dtypes == ("float64", "float32", "float16")
        assert_conforms(result, "float64")

    def test_arrays_where_tensors_would_do_too_but_without_gradients(self, make: Make) -> None:
        text = "def f(q, k, v):\n    e = np.exp(q @ k.swapaxes(-1, -2) * float(q.shape[-1]) ** -0.5)\n"
        result = make(text + "    return e / e.sum(-1, keepdims=True) @ v")
        assert result.about.startswith("a function of NumPy arrays")
        assert_conforms(result)

    def test_tensors_where_arrays_would_do_too(self, make: Make) -> None:
        text = "def f(q, k, v):\n    e = math.e ** (q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5)\n"
        result = make(text + "    return e / e.sum(-1)[..., None] @ v")
        assert result.about.startswith("a function of torch tensors")
        assert Feature.GRADIENTS in result.claims

    def test_arrays_are_read_only_in_one_of_its_alternatives(self, make: Make) -> None:
        result = make("def f(q, k, v):\n    assert isinstance(q, np.ndarray)\n    return q + v * q.flags.writeable")
        problem = build(Case().sized(query_length=7, d_v=4), "float32").forward_only()
        unchanged = result.alternatives["with read-only arrays"](problem.fresh(), "cpu").output
        assert (unchanged == problem.query).all()
        assert (result.run(problem.fresh(), "cpu").output == problem.query + problem.value).all()

    def test_an_answer_that_is_no_array_at_a_later_call(self, make: Make) -> None:
        result = make("def f(q, k, v, scale=None): return np.asarray(q) if scale is None else 'no'")
        problem = build(Case(scale=2.0, module=None), "float32").forward_only()
        with pytest.raises(TypeError, match="a NumPy array was expected, got str"):
            result.run(problem, "cpu")

    @pytest.mark.parametrize("first", [0, 3, 15, 36])
    @pytest.mark.parametrize("change", ["x + 1j", "torch.nested.nested_tensor(list(x))", "x.as_subclass(Odd)", "None"])
    def test_an_answer_that_is_unusable_from_one_call_on(self, make: Make, change: str, first: int) -> None:
        with suppress(TargetError):  # nothing else is raised, at whichever call of those that look at it
            make(UNUSABLE.format(change=change, first=first))
        assert len(Path("calls").read_text()) > first


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "features", "notes"),
        [
            ("def f(q, k, v):\n    o, p, s = attend(q, k, v)\n    return o, s, p", EXTRAS, ""),
            (
                "def f(q, k, v): return *attend(q, k, v)[:2], {'a': 1}, None, torch.zeros(2)",
                OF_TENSORS | {Feature.WEIGHTS},
                "; part 2 of its answer is ignored: dict (); part 4 of its answer is ignored: Tensor (2,)",
            ),
            (
                "def f(query, key, value, attn_maks=None, block=64): return attend(query, key, value)[0]",
                OF_TENSORS,
                "; attn_mask not claimed: the suite does not know its parameter 'attn_maks'; did you mean 'attn_mask'?",
            ),
            (
                "def f(q, k, v, mask=None): return attend(q, k, v, mask)[0].detach()",
                (OF_TENSORS | MASKS) - GRADIENTS,
                "; gradients not claimed: its output does not require grad"
                "; mask-gradient not claimed: its output does not require grad"
                "; a row without keys gets nan",
            ),
        ],
    )
    def test_claims_and_notes(self, make: Make, text: str, features: set[Feature], notes: str) -> None:
        result = make(text)
        assert result.claims.features == features
        assert result.about == f"a function of torch tensors{notes}"
        assert_conforms(result)

    def test_one_dtype(self, make: Make) -> None:
        text = "def f(q, k, v):\n    if q.dtype is torch.float16: raise RuntimeError('not in half')\n"
        result = make(text + "    return attend(q, k, v)[0]")
        assert result.claims.dtypes == ("float64", "float32", "bfloat16")
        assert result.about == "a function of torch tensors; float16 not claimed: RuntimeError: not in half"

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_types_only(self, make: Make, dtype: str) -> None:
        text = (
            f"def f(q, k, v, is_causal=False):\n    if q.dtype is not torch.{dtype}: raise RuntimeError('one dtype')\n"
        )
        result = make(text + "    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)")
        assert result.claims.dtypes == (dtype,)
        assert result.claims.features == OF_TENSORS | {Feature.CAUSAL}

    def test_tied_widths_and_no_empty_sizes(self, make: Make) -> None:
        text = "def f(q, k, v):\n    if v.shape != k.shape or not k.numel(): raise ValueError('no')\n"
        result = make(text + "    return attend(q, k, v)[0]")
        assert result.claims.features == OF_TENSORS - {Feature.VALUE_WIDTH, Feature.EMPTY_SIZES}
        notes = "; value-width not claimed: ValueError: no; empty-sizes not claimed: ValueError: no"
        assert result.about == f"a function of torch tensors{notes}"

    def test_what_is_only_wrong_stays_claimed(self, make: Make) -> None:
        text = "def f(q, k, v, attn_mask=None):\n    if attn_mask is not None: 1 / 0\n"
        assert make(text + "    return attend(q, k, v)[0].mean(-1)").claims.features == ALWAYS | MASKS

    OWN_BACKWARD = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias):
        ctx.save_for_backward(q, k, v, bias)
        return attend(q, k, v, bias)[0]
    @staticmethod
    def backward(ctx, gradient):
        given = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            output = attend(*given)[0]
        {returned}

def f(q, k, v, bias=None):
    return attend(q, k, v)[0] if bias is None else Own.apply(q, k, v, bias)
"""

    @pytest.mark.parametrize(
        ("returned", "claimed"),
        [
            ("return (*torch.autograd.grad(output, given[:3], gradient), None)", False),
            ("return torch.autograd.grad(output, given, gradient)", True),
        ],
    )
    def test_a_backward_pass_of_its_own_may_leave_out_the_mask(self, make: Make, returned: str, claimed: bool) -> None:
        result = make(self.OWN_BACKWARD.format(returned=returned))
        assert (Feature.MASK_GRADIENT in result.claims) is claimed
        assert ("mask-gradient not claimed: its own backward pass gives none" in result.about) is not claimed
        assert Feature.GRADIENTS in result.claims

    def test_a_mask_that_is_detached_stays_claimed(self, make: Make) -> None:
        result = make(
            "def f(q, k, v, bias=None):\n    return attend(q, k, v, None if bias is None else bias.detach())[0]"
        )
        assert Feature.MASK_GRADIENT in result.claims

    def test_the_probes_spoil_nothing(self, make: Make) -> None:
        state = torch.get_rng_state()
        make("def f(q, k, v):\n    q.mul_(0)\n    return attend(q, k, v)[0]")
        assert torch.equal(torch.get_rng_state(), state)
        assert build(Case(sizes=Sizes(2, 3, 16, 16, 16, 16)), "float32").query.any()


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("f = 3", f"it is an object of type int: {USABLE}"),
            ("class f: pass", f"it is a class, but no torch.nn.Module: {USABLE}"),
            ("f = nn.MultiheadAttention(4, 2)", "it is an instance of MultiheadAttention: give the class"),
            ("def f(q, k): pass", "it takes (q, k) by position: let it take query, key, value"),
            ("def f(*, q, k, v): pass", "it takes () by position: let it take query, key, value"),
            ("def f(query, value, key): pass", "its inputs come as (query, value, key): order them query, key, value"),
            ("def f(q, k, v, d_k): pass", "it needs 'd_k', which the suite does not know: give that a default"),
        ],
    )
    def test_line_that_offers_the_auditor(self, make: Make, text: str, message: str) -> None:
        assert refused(make, text) == f"{message}, {WRAP}"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("def f(q, k, v): return None", f"it returned None: {A_TENSOR}"),
            ("def f(q, k, v): return {q}", f"it returned an object of type set: {A_TENSOR}"),
            ("def f(q, k, v): return 'a', q", f"it returned a tuple of (str, Tensor): {A_TENSOR}"),
            ("def f(q, k, v): return ()", f"it returned a tuple of (): {A_TENSOR}"),
            ("def f(q, k, v): return (q,)", "it returned a tuple of one: return a tensor, without a tuple around it"),
            (
                "def f(q, k, v): return (np.asarray(q),)",
                "it returned a tuple of one: return an array, without a tuple around it",
            ),
            ("def f(q, k, v):\n    raise RuntimeError('no kernel\\nat all')", f"{UNCALLED}: RuntimeError: no kernel"),
            ("def f(q, k, v):\n    raise SystemExit(3)", f"{UNCALLED}: SystemExit: 3"),
        ],
    )
    def test_line(self, make: Make, text: str, message: str) -> None:
        assert refused(make, text) == message

    def test_a_method_without_its_object(self, make: Make) -> None:
        text = "class A:\n    def f(self, q, k, v): return q"
        assert refused(make, text, "A.f") == f"it is a method of a class: give a function or a bound method, {WRAP}"

    def test_an_interrupt_goes_through(self, make: Make) -> None:
        with pytest.raises(KeyboardInterrupt):
            make("def f(q, k, v):\n    raise KeyboardInterrupt")

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(TargetError, match=r"^json:dumps: device 'nowhere' cannot be used: RuntimeError: "):
            candidate("json:dumps", {}, "nowhere")


class TestNames:
    def test_files_and_folders_come_before_names_that_are_alike(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for place in ("a/mine.py", "b/mine.py", "yours.py"):
            write(tmp_path, place, "def attention(q, k, v): return q + v\ndef other(q, k, v): return q\n")
        targets = [f"{place}:attention" for place in ("a/mine.py", "b/mine.py", "yours.py", "./a/mine.py")]
        result = candidates([*targets, "a/mine.py:other"], LOAD)
        assert [each.name for each in result] == ["a.mine.attention", "b.mine.attention", "yours.attention", "other"]

    def test_one_name_in_two_classes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        text = "class {}:\n    @staticmethod\n    def f(q, k, v): return q\n"
        (tmp_path / "mine.py").write_text(text.format("A") + text.format("B"))
        assert [each.name for each in candidates(["mine.py:A.f", "mine.py:B.f"], LOAD)] == ["A.f", "B.f"]


def test_arrays_cross_unchanged(make: Make) -> None:
    result = make("def f(q, k, v): return q.clone()")
    problem = build(Case(), "float64").forward_only()
    assert np.array_equal(result.run(problem, "cpu").output, problem.query)
