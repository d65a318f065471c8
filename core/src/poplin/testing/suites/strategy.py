"""The suite for strategies.

How to use it::

    from poplin.testing import StrategyCompliance

    class TestAcme(StrategyCompliance):
        name = "acme"                 # or: def create(self): return AcmeStrategy(...)
        accelerator = "acme"          # what it runs on in the checks; the CPU by default
        world_size = 2                # ranks of the checks that need several
        tolerance = 1e-5              # how far values may be from those of a single process
        env = {"ACME_CPU": "1"}       # environment variables of the ranks
        precision = "32-true"
        preload = False               # where its library does not survive a fork after `import torch`

One launch with one rank and one with ``world_size`` ranks serve all checks. A strategy whose ``check`` refuses several
devices (or one) is not claimed to serve them. ``mutates_module``, ``picklable``, ``supports_no_backward_sync``,
``averages_gradients``, ``owns_parameters`` and ``checkpoint_io_name`` are read: what they rule out is not claimed.
Where the model of the checks can't be served, override ``model``; where the Fabric needs more arguments, override
``fabric``.
"""

from __future__ import annotations

from poplin.testing.suites.extension import Common
from poplin.testing.suites.strategy_collectives import Collectives
from poplin.testing.suites.strategy_faults import Faults
from poplin.testing.suites.strategy_state import Saving
from poplin.testing.suites.strategy_training import Training


class StrategyCompliance(Faults, Saving, Training, Collectives, Common):
    """What every strategy must do: collectives, training as one process does, saving and loading, failing together.

    What is trained is compared with one process that has the whole of each batch: a step of all ranks is taken to be
    its step, as under synchronous data parallelism, sharding and pipelines. A strategy of another kind says
    ``averages_gradients = False`` (local SGD, whose ranks step by themselves and average parameters now and then) and
    tells the suite its ``period``. Then its runs are compared with one another: with and without accumulation,
    clipping by torch, saving in between, other seeds on other ranks; after a whole number of periods all ranks hold the
    same values. It is resumed there with an inner optimizer that remembers nothing, so what the strategy itself must
    remember shows; moments of AdamW are each rank's own, and a file has those of rank 0. In one process it trains as
    plain torch does; if it doesn't (an outer optimizer), exempt that check.
    """
