"""Own gradients: functions of NumPy are judged with those that they return, or that the pass next to them does."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.thorough import thorough

PASSES = """
def f_forward(q, k, v, scale=None):
    {axes} = q.shape
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = q @ k.swapaxes(-1, -2) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return p @ v, p

def gradients(dout, q, k, v, p, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * {scale}
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout
"""
RETURNED = """
def f(q, k, v, dout, scale=None):
    out, p = f_forward(q, k, v, scale)
    return out, *gradients(dout, q, k, v, p, scale)
"""
NEXT_TO = """
def f_backward(dout, q, k, v, p, scale=None):
    return gradients(dout, q, k, v, p, scale)
f = f_forward
"""
LOST = "q.shape[-1] ** -0.5"


@pytest.mark.parametrize(
    ("form", "axes"), [(RETURNED, "B, H, L, d"), (NEXT_TO, "L, d"), pytest.param(RETURNED, "N, L, d", marks=thorough)]
)
@pytest.mark.parametrize(("scale", "wrong"), [("scale", False), (LOST, True)])
def test_gradients_of_its_own_are_judged(make: Make, form: str, axes: str, scale: str, wrong: bool) -> None:
    made = make(PASSES.format(scale=scale, axes=axes) + form)
    assert Feature.GRADIENTS in made.claims
    found = run(made, ("gradients.any-scale", "gradients.shared-input"), ("float64",))
    assert {each.clause: each.status for each in found} == {
        "gradients.any-scale": Status.FAIL if wrong else Status.PASS,
        "gradients.shared-input": Status.PASS,
    }


def test_a_backward_pass_of_another_name_is_not_its_own(make: Make) -> None:
    assert Feature.GRADIENTS not in make(PASSES.format(scale="scale", axes="B, H, L, d") + "f = f_forward").claims


IN_ORDER = """
def f_backward(dout, q, k, v, p, scale=None):
    dq, dk, dv = gradients(dout, q, k, v, p, scale)
    return {}
f = f_forward
"""


@pytest.mark.parametrize(("returned", "stated", "wrong"), [("dv, dk, dq", True, False), ("dk, dq, dv", False, True)])
def test_that_of_the_query_may_come_last(make: Make, returned: str, stated: bool, wrong: bool) -> None:
    """As it is computed; in any other order it is a mistake."""
    made = make(PASSES.format(scale="scale", axes="B, H, L, d") + IN_ORDER.format(returned))
    assert ("those of 'f_backward', in the order value, key, query" in made.about) is stated
    (found,) = run(made, ("gradients.any-scale",), ("float64",))
    assert (found.status is Status.FAIL) is wrong


def test_which_of_several_saved_arrays_is_meant_is_not_guessed(make: Make) -> None:
    several = PASSES.format(scale="scale", axes="B, H, L, d").replace("return p @ v, p", "return p @ v, s, p")
    assert Feature.GRADIENTS not in make(several + NEXT_TO).claims
