"""What the parts of the suite for strategies share: the Fabric of a check, and values as the user names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from poplin import Fabric
from poplin.errors import SelectionError
from poplin.strategies import ParallelStrategy, Strategy
from poplin.testing.case import Case
from poplin.testing.checks import Requirement
from poplin.testing.compliance import Compliance
from poplin.testing.launch import Result
from poplin.testing.suites.training import SmallNet, fabric_training, optimizer_of, plain_training, seeded
from poplin.wrappers.sharing import link_of

_REFUSES = "the strategy refuses"

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class StrategyBase(Compliance):
    """Settings and helpers of the suite for strategies."""

    kind = "strategies"
    ranks_exist = True
    #: Precision of the checks.
    precision: str = "32-true"
    #: Seconds that a collective may wait in the checks.
    timeout: float = 30
    #: How far values may be from those of a single process.
    tolerance: float = 1e-5
    #: Steps after which all ranks hold the same values again: more than 1 where ``averages_gradients`` is False.
    period: int = 1

    def run_in_processes(self, checks: Sequence[Requirement], processes: int) -> dict[str, Result]:
        """As of every suite; the checks for several ranks run in one where the strategy refuses several devices."""
        results = super().run_in_processes(checks, processes)
        if processes > 1 and all(result.message.startswith(_REFUSES) for result in results.values()):
            return super().run_in_processes(checks, 1)
        return results

    def model(self) -> nn.Module:
        """The model that is trained: takes ``(batch, 8)``, gives ``(batch, 4)``. Override it for one of your own."""
        return SmallNet()

    def fabric(self, case: Case, *, timeout: float | None = None, **options: Any) -> Fabric:
        """A Fabric with a new strategy in this rank, launched; closed after the check.

        Args:
            case: of the check.
            timeout: of collectives, in seconds.
            **options: more arguments of Fabric.

        Raises:
            NotClaimed: the strategy refuses the run, by ``check`` or ``accepts_precision``.
        """
        strategy = self.create()
        if isinstance(strategy, ParallelStrategy):
            strategy.timeout = timedelta(seconds=timeout or self.timeout)
        arguments: dict[str, Any] = {
            "accelerator": self.accelerator,
            "precision": self.precision,
            "devices": case.world_size,
        }
        try:
            fabric = Fabric(strategy=strategy, **(arguments | options))
        except SelectionError as error:
            case.not_claimed(f"{_REFUSES} {_told(arguments | options)}: {error}")
        return case.use(fabric)

    def launched(self, case: Case, **options: Any) -> Strategy:
        """The strategy of such a Fabric."""
        return self.fabric(case, **options).strategy

    def set_up(self, fabric: Fabric, seed: int = 0, make_optimizer: MakeOptimizer = optimizer_of) -> tuple[Any, Any]:
        """A new model and its optimizer, set up."""
        module = seeded(self.model, seed)
        wrapped, optimizer = fabric.setup(module, make_optimizer(module))
        return wrapped, optimizer

    def trained(self, case: Case, steps: int, *, seed: int = 0, **options: Any) -> tuple[Fabric, Any, list[float]]:
        """A Fabric, a model that it has trained, and the norms before clipping."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric, seed)
        return fabric, module, fabric_training(fabric, module, optimizer, steps, **options)

    def steps(self, at_least: int) -> int:
        """A number of steps after which the ranks hold the same values."""
        return -(-at_least // self.period) * self.period

    def expected(
        self,
        case: Case,
        averages: bool,
        steps: int,
        clip: Mapping[str, float] | None = None,
        make_optimizer: MakeOptimizer = optimizer_of,
    ) -> tuple[dict[str, Tensor], list[float]]:
        """Values by name that a training of ``steps`` must end with, and the norms before clipping.

        Args:
            case: of the check.
            averages: whether the strategy ``averages_gradients``: the reference is one process that trains with plain
                torch on the whole of each batch. Else it is the strategy itself, from equal initial values and with
                nothing in between; its gradients are clipped by torch, on each rank by itself. A collective.
            steps: how many.
            clip: arguments of ``clip_gradients``.
            make_optimizer: makes the optimizer of a module.
        """
        if averages:
            reference = seeded(self.model)
            norms = plain_training(reference, steps, clip=clip, make_optimizer=make_optimizer)
            return self.values_of(reference), norms
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric, make_optimizer=make_optimizer)
        norms = fabric_training(fabric, module, optimizer, steps, clip=clip, clip_by_torch=True)
        found = self.values(fabric, module)
        fabric.close()
        return found, norms

    def values_of(self, module: nn.Module) -> dict[str, Tensor]:
        """The values of a plain module, by name."""
        return {name: value.detach().cpu().float() for name, value in module.state_dict().items()}

    def values(self, fabric: Fabric, module: Any) -> dict[str, Tensor]:
        """The full values of a set-up module by the user's names. A collective; ranks but the first may get none."""
        state = fabric.strategy.get_module_state_dict(link_of(module).forward_module)
        return {name: value.detach().cpu().float() for name, value in state.items() if isinstance(value, Tensor)}

    def expect_values(
        self, case: Case, found: Mapping[str, Tensor], expected: nn.Module | Mapping[str, Tensor], what: str
    ) -> None:
        """Fail unless rank 0 has the expected values, those of a module (and every other rank that has any)."""
        if case.rank and not found:
            return
        for name, value in (self.values_of(expected) if isinstance(expected, nn.Module) else expected).items():
            case.expect(name in found, f"a value named {name!r}", sorted(found))
            case.expect_close(found[name], value, f"{name!r} {what}", self.tolerance)


def _told(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if isinstance(value, (str, int)))
