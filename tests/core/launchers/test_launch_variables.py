"""What an accelerator wants in the environment of every process of a launch."""

import json
from pathlib import Path

import pytest

from poplin.testing.processes import Program

PROGRAM = Path(__file__).parent / "programs" / "variables.py"


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("ddp_spawn", marks=pytest.mark.slow)])
def test_every_rank_finds_it_and_nobody_afterwards(strategy):
    with Program(PROGRAM, [strategy]) as program:
        assert program.end(timeout=120) == 0, program.output
        told = json.loads(program.output.partition("REPORT ")[2].splitlines()[0])
    assert told["one"] is told["after"] is None
    assert told["two"] == [told["here"]] * 2  # decided once, by the process that starts the others
    assert told["asked"] == [[2, 1]]
    assert "WANTING_MEETS" in told["explain"]
