"""The compliance suites of this package: DeepSpeed takes its time, and its folders hold what its engines hold."""

from __future__ import annotations

from poplin.testing import CheckpointIOCompliance, StrategyCompliance

_NEEDS_AN_ENGINE = (
    "only DeepSpeed's engines write these folders, and the strategies do it themselves: their suite saves and loads so"
)


class DeepSpeedCompliance(StrategyCompliance):
    """Whatever the stage and what is offloaded."""

    limit = 120


class DeepSpeedStage3Compliance(DeepSpeedCompliance):
    """The stage whose parameters are split, too: it is checked beside another one of its class."""

    name = "deepspeed_stage_3"


class DeepSpeedCheckpointIOCompliance(CheckpointIOCompliance):
    """What can be asked of it without an engine."""

    name = "deepspeed"
    exempt = dict.fromkeys(
        (
            "test_what_was_saved_comes_back",
            "test_saving_leaves_the_state_as_it_was",
            "test_a_later_save_replaces_an_earlier_one",
            "test_a_save_that_is_killed_leaves_what_stood_there",
            "test_a_save_that_was_killed_is_not_taken_for_whole",
            "test_a_full_disk_is_an_error_and_leaves_what_stood_there",
            "test_a_checkpoint_that_lost_a_part_is_refused",
            "test_reading_executes_nothing",
            "test_it_recognises_its_own_and_nothing_else",
            "test_removing_leaves_nothing",
            "test_missing_folders_are_made_and_a_path_may_be_a_string",
            "test_fabric_saves_and_loads_with_it",
        ),
        _NEEDS_AN_ENGINE,
    )
