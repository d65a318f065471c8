"""``poplin run`` refuses what can't be meant before it starts anything, and takes any name that the registry knows."""

import json

from poplin.testing.distributions import make_distribution

SCRIPT = """
import json, os, sys
from poplin import registry
told = {name: value for name, value in os.environ.items() if name.startswith("LT_")}
print(json.dumps({"arguments": sys.argv[1:], "environment": told, "loggers": registry.names("loggers")}))
"""
PLUGIN = """
from poplin import hookimpl, lazy

@hookimpl
def poplin_strategies():
    return {"acme": lazy("poplin.strategies:SingleDeviceStrategy")}
"""


def test_unknown_names_are_refused_before_anything_runs(poplin, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import pathlib; pathlib.Path('ran').touch()")
    for words, hint in (
        (["--strategy", "single_devise"], "single_device"),
        (["--accelerator", "cpuu"], "cpu"),
        (["--precision", "32-tru"], "32-true"),
        (["--strategy", "deepspeed"], "pip install poplin-deepspeed"),
    ):
        done = poplin("run", *words, script, code=1)
        assert hint in done.stderr
        assert "Traceback" not in done.stderr
    assert "blocked" in poplin("run", "-p", "no:single_device", "--strategy=single_device", script, code=1).stderr
    assert not (tmp_path / "ran").exists()


def test_a_third_partys_name_and_what_reaches_the_script(poplin, site, tmp_path):
    make_distribution(
        site,
        "acme",
        "1.0",
        entry_points={"poplin.strategies": {"acme": "acme_plugin"}},
        modules={"acme_plugin.py": PLUGIN},
    )
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "mine.py").write_text("import poplin\npoplin.register('loggers', 'mine', dict)\n")
    options = ["--strategy", "acme", "--accelerator=cpu", "--num_nodes", 1]
    done = poplin("-p", "mine", "run", "-p", "no:csv", *options, script, "--", "--devices", "7")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["arguments"] == ["--", "--devices", "7"]
    assert told["environment"]["LT_STRATEGY"] == "acme"
    assert told["environment"]["LT_ACCELERATOR"] == "cpu"
    assert told["environment"]["LT_CLI_USED"] == "1"
    assert "mine" in told["loggers"]
    assert "csv" not in told["loggers"]


def test_an_exception_is_the_reason_even_if_the_process_aborts_on_its_way_out(poplin, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os\n"
        "from types import SimpleNamespace\n"
        "from poplin.environments import TorchrunEnvironment\n"
        "TorchrunEnvironment().bind(SimpleNamespace())\n"
        "atexit.register(os.abort)\n"
        "raise ValueError('boom')\n"
    )
    done = poplin("run", "--devices=1", "--accelerator=cpu", script, code=1)
    assert "poplin: rank 0 of 1 failed with an exception, and was killed by SIGABRT on its way out." in done.stderr
    assert "ValueError: boom" in done.stderr.partition("poplin: rank 0")[2]
