"""More than attention: what answers as no attention that is known because it is a larger part of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.parameters import find_places, names_of
from attention_conformance.implementations.discovery.modules.query_key_norms import role_of
from attention_conformance.implementations.discovery.signatures import ADAPTER
from attention_conformance.implementations.discovery.targets.loading import TargetError

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

NORMS_OF_A_BLOCK = 2
"""Norms that are left out, and none of queries or keys: attention alone has one before it, or one behind it."""
OF_VALUES = {("w_v",), ("b_v",)}
"""What the weights that are zeroed hold, in layers of their own."""
INSIDE = f"judge the attention in it by itself, {ADAPTER}"


def refuse_more_than_attention(make: Constructor, call: ModuleCall) -> None:
    """Refuses class attention, and blocks with several norms in which something else flows, too.

    Raises:
        TargetError: it is such a one.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = in_mode(built(make), False)
        x = torch.linspace(-1.0, 1.0, 2 * make.tokens * make.width).view(2, make.tokens, make.width)
        answer = safe_call(lambda: call.plain(module, (x, x, x), make.heads)).value
        if not isinstance(answer, torch.Tensor) or answer.shape != x.shape or make.tokens < 2:
            return
        if torch.equal(answer[:, 1:], x[:, 1:]) and not torch.equal(answer[:, 0], x[:, 0]):
            raise TargetError(
                f"it answers the first token alone, and gives back the others (class attention): {INSIDE}"
            )
        places = make.places or find_places(module)
        values = [p for path, p in module.named_parameters() if path in places and names_of(places[path]) in OF_VALUES]
        if not values or len([path for path in make.left_out if not role_of(path)]) < NORMS_OF_A_BLOCK:
            return
        for parameter in values:
            parameter.zero_()
        one, other = (call.plain(module, (each,) * 3, make.heads) for each in (x, 0.5 * x + 0.1))
    if not torch.allclose(one, other, atol=1e-4):
        raise TargetError(f"its answer depends on its inputs without their values, too: {INSIDE}")
