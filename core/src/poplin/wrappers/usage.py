"""What this process holds of all that a Fabric has set up, in bytes."""

from __future__ import annotations

from poplin.strategies.memory import memory_of, states_of
from poplin.utilities.sizes import size_text
from poplin.wrappers.setups import Setups
from poplin.wrappers.sharing import link_of


def memory_report(setups: Setups) -> str:
    """Lines of text for ``Fabric.explain(memory=True)``: one for each module and optimizer that is set up."""
    lines = ["memory of this process, without activations"]
    for module in setups.modules:
        original = link_of(module).original
        memory = memory_of(original)
        lines.append(
            f"  {type(original).__name__}: parameters {size_text(memory.parameters)}, gradients "
            f"{size_text(memory.gradients)}, buffers {size_text(memory.buffers)}"
        )
    for optimizer in setups.optimizers:
        inner = link_of(optimizer).optimizer
        states = states_of(inner)
        later = "" if states else ", which the first step makes"
        lines.append(f"  {type(inner).__name__}: states {size_text(states)}{later}")
    if len(lines) == 1:
        lines.append("  nothing is set up")
    return "\n".join(lines)
