"""Activation checkpointing: what some modules compute is computed again in the backward pass, instead of kept."""

from __future__ import annotations

from torch import nn

from poplin_fsdp.selecting import Policy, selected


def checkpoint_activations(module: nn.Module, policy: Policy) -> None:
    """Put torch's checkpoint wrapper around the submodules of ``module`` that ``policy`` means.

    Names of parameters in state dicts stay the user's.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper

    chosen = {id(one) for one in selected(module, policy)}
    wrappers: dict[int, nn.Module] = {}
    for parent in list(module.modules()):
        if isinstance(parent, CheckpointWrapper):
            continue  # the user's own: it is done
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in chosen:
                if id(child) not in wrappers:  # one that stands in two places stays one
                    wrappers[id(child)] = checkpoint_wrapper(child)
                parent._modules[name] = wrappers[id(child)]
