"""The compliance suites of this package: torch_xla's devices are not the CPU, and its processes are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poplin import Fabric
from poplin.testing import (
    AcceleratorCompliance,
    Case,
    EnvironmentCompliance,
    LauncherCompliance,
    PrecisionCompliance,
    StrategyCompliance,
)
from poplin_tpu.strategy import XLAStrategy

_OWN_PROCESSES = "torch_xla starts a process for each of its own devices, and the ranks of the checks are on the CPU"


class TPUAcceleratorCompliance(AcceleratorCompliance):
    """``tpu`` and ``xla``: the first use of an operation is compiled, which takes its time."""

    limit = 200


class TorchXLACompliance(StrategyCompliance):
    """The strategies, on a device of torch_xla's (``PJRT_DEVICE=CPU`` makes one of the CPU)."""

    accelerator = "xla"
    world_size = 1
    limit = 200

    def fabric(self, case: Case, *, timeout: float | None = None, **options: Any) -> Fabric:
        """As of the suite for strategies.

        Raises:
            NotClaimed: it runs in processes that torch_xla starts.
        """
        if isinstance(self.create(), XLAStrategy):
            case.not_claimed(f"it runs in what fabric.launch(main) starts: {_OWN_PROCESSES}")
        return super().fabric(case, timeout=timeout, **options)


class XLAPrecisionCompliance(PrecisionCompliance):
    """The precisions: offered as ``xla-bf16-true``, because ``bf16-true`` is another package's."""

    exempt: Mapping[str, str] = {
        "test_it_is_called_what_it_is_looked_up_by": "it is called by the usual name of its format, by which the "
        "strategies of torch_xla make it, too"
    }


class XLALauncherCompliance(LauncherCompliance):
    """What can be asked of it without its processes."""

    name = "xla"
    exempt = dict.fromkeys(
        (
            "test_the_function_runs_once_in_each_rank",
            "test_the_result_comes_back",
            "test_a_large_result_comes_back_whole",
            "test_what_the_script_registered_is_known_in_the_ranks",
            "test_a_closure_runs_or_is_refused_by_name",
            "test_an_exception_of_a_rank_comes_back",
            "test_the_other_ranks_unwind_when_one_fails",
            "test_a_rank_that_is_killed_is_named",
            "test_the_launching_process_is_as_it_was",
            "test_no_process_is_left",
            "test_a_signal_to_the_launching_process_ends_the_ranks",
            "test_ranks_die_with_the_launching_process",
        ),
        _OWN_PROCESSES,
    )


class XLAEnvironmentCompliance(EnvironmentCompliance):
    """What can be asked of it outside those processes."""

    name = "xla"
    exempt = dict.fromkeys(
        (
            "test_it_detects_itself_in_a_process_that_was_started",
            "test_the_ranks_are_those_of_the_processes",
            "test_every_process_is_told_the_same_meeting_point",
            "test_it_accepts_what_was_started_and_refuses_anything_else",
            "test_launchers_cannot_change_ranks_that_exist",
            "test_teardown_gives_everything_back",
        ),
        "ranks come from torch_xla's runtime, in the processes that it has started, and from no variables",
    )
