"""Functions that are passed an object of settings: its sizes are those of the inputs, its flags are options."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

CLASS = """
from dataclasses import dataclass

@dataclass
class Settings:
    num_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int = 16
    causal: bool = False
"""
ONE_AXIS = """
def f({parameters}):
    q, k, v = split(query, cfg.num_heads), split(key, cfg.num_kv_heads), split(value, cfg.num_kv_heads)
    k, v = (x.{repeated} for x in (k, v))
    return attend(q, k, v, causal=cfg.causal)[0].transpose(1, 2).flatten(2)
"""
APART = """
def f({parameters}):
    assert query.shape[1] == cfg.num_heads and query.shape[-1] == cfg.head_dim
    return attend(query, key, value, causal=cfg.causal, scale=cfg.{width} ** -0.5)[0]
"""
FIRST, LAST = "cfg: Settings, query, key, value", "query, key, value, *, cfg"
IN_TURN = "repeat_interleave(cfg.num_heads // cfg.num_kv_heads, 1)"
WHOLE = "repeat(1, cfg.num_heads // cfg.num_kv_heads, 1, 1)"


@pytest.mark.parametrize("parameters", [FIRST, LAST, "query, key, value, cfg=Settings()"])
@pytest.mark.parametrize("repeated", [IN_TURN, WHOLE])
def test_settings_of_inputs_with_heads_in_one_axis(make: Make, parameters: str, repeated: str) -> None:
    made = make(CLASS + ONE_AXIS.format(parameters=parameters, repeated=repeated))
    assert "the sizes in its 'cfg' are those of its inputs" in made.about
    assert {Feature.GROUPED, Feature.CAUSAL} <= made.claims.features
    assert bool(failing(made, "grouped.order")) is (repeated == WHOLE)


@pytest.mark.parametrize("width", ["head_dim", "num_heads"])
def test_settings_of_inputs_with_heads_apart(make: Make, width: str) -> None:
    made = make(CLASS + APART.format(parameters=FIRST, width=width))
    if width == "head_dim":
        assert_conforms(made)
    else:
        assert failing(made, "scores.scale-default")


DICTIONARY = """
def f(query, key, value, config):
    q, k, v = (split(x, config["n_heads"]) for x in (query, key, value))
    return attend(q, k, v, scale={divisor} ** -0.5)[0].transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(("divisor", "wrong"), [("q.shape[-1]", False), ('config["d_model"]', True)])
def test_settings_in_a_dictionary(make: Make, divisor: str, wrong: bool) -> None:
    made = make(DICTIONARY.format(divisor=divisor))
    assert "the sizes in its 'config' are those of its inputs" in made.about
    assert bool(failing(made, "scores.scale-default")) is wrong
