"""What a module is judged without, and which of its flags are set: parts taken out, parameters held, nothing given."""

from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.neutrals import ADDITIVE, ROTATIONS

MOST_NAMED = 6
"""What is left out that is named."""
USUAL = ("bias", "batch_first")
"""Flags that are set wherever there are any."""


def left_out(make: Constructor, call: ModuleCall) -> list[str]:
    """The notes on it; nothing where there is none."""
    flags = [f"{name}=True" for name, given in make.options.items() if given is True and name not in USUAL]
    outside = [*make.left_out, *(f"{path!r} ({fill})" for path, fill in make.held.items())]
    outside += [f"the rotation of {name!r}" for name in make.unrotated]
    outside += [f"{n!r} ({each})" for n, each in call.tables.items() if each in ADDITIVE or each in ROTATIONS]
    outside += [f"{call.unread!r}, which changes nothing"] if call.unread else []
    outside += ["the input that it adds"] if call.tap else []
    more = [f"and {len(outside) - MOST_NAMED} more"] if len(outside) > MOST_NAMED else []
    built = [f"built with {', '.join(flags)}"] if flags else []
    return [*built, *([f"judged without {', '.join([*outside[:MOST_NAMED], *more])}"] if outside else [])]
