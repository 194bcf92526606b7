"""What has no room for a long sequence, or raises under vmap with a mask, is judged in the rest."""

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

OF_TRIPLES = """
def f(q, k, v):
    s = np.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5
    if s.shape[-1] > 600:
        raise MemoryError("no room for a table of triples")
    weights = 1.0 / np.exp(s[..., None, :] - s[..., :, None]).sum(-1)
    return np.einsum("...ij,...jd->...id", weights, v).astype(q.dtype)
"""
BY_INDEX = '''
def f(q, k, v, key_padding_mask=None):
    """key_padding_mask (B, Lk), True = keep."""
    rows = range(len(q)) if key_padding_mask is not None else ()
    parts = [attend(q[b], *(x[b][:, key_padding_mask[b]] for x in (k, v)))[0] for b in rows]
    return torch.stack(parts) if parts else attend(q, k, v)[0]
'''


def test_longer_sequences_than_have_room_are_not_claimed(make: Make) -> None:
    made = make(OF_TRIPLES)
    assert "more than 512 tokens not claimed: MemoryError" in made.about
    assert_conforms(made)
    assert isinstance(fit(Case().sized(query_length=513, key_length=513), made.claims), Unsupported)
    assert not isinstance(fit(Case().sized(query_length=512, key_length=512), made.claims), Unsupported)


def test_what_vmap_cannot_do_with_padding_is_not_claimed(make: Make) -> None:
    made = make(BY_INDEX)
    assert Feature.KEY_PADDING in made.claims
    assert Feature.VMAP not in made.claims
    assert_conforms(made)
