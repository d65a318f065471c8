"""A cluster of two nodes, on this machine, that the user is connected to already."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    path = tmp_path_factory.mktemp("ray") / "told.json"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "programs" / "clusters.py"), str(path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "POPLIN_GRACE": "5"},
        capture_output=True,
        text=True,
        timeout=350,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_each_node_gets_its_processes(told):
    result = told["two nodes"]
    assert (result["rank"], result["size"], result["total"]) == (0, 2, 3.0)
    assert result["others"] == [0, 1]  # the node of each rank
    assert result["variable"] == "yes"


def test_an_exception_of_another_node_comes_back_as_it_was(told):
    failing = told["failing"]
    assert failing["class"] == "OfTheScript"
    assert failing["args"] == "('on purpose', {'of': 'rank 1'})"
    assert "Rank 1 of 2 failed" in failing["cause"]
    assert "Traceback" in failing["cause"]


def test_a_cluster_without_room_is_an_error_that_says_what_it_has(told):
    assert told["no room"]["class"] == "LaunchError"
    assert "no room for 2 node(s) with {'CPU': 4.0} each, within 3 s" in told["no room"]["text"]


def test_the_users_connection_stays_and_nothing_is_taken_any_more(told):
    assert told["still connected"]
    assert told["actors"] == 0
    assert told["free again"]
