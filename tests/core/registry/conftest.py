"""A fresh process with a site folder of the test's own: what is imported, and when, is what these tests are about."""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import poplin

CORE_SOURCES = Path(poplin.__file__).parents[1]
MARK = "@result@"
PRELUDE = """
import json, sys, warnings
_caught = warnings.catch_warnings(record=True)
warned = _caught.__enter__()
warnings.simplefilter("always")
from poplin import registry
from poplin.registry import hookspecs, find, names, rows, register, hookimpl, lazy
result = {}

def attempt(function, *args, **kwargs):
    '''The error that a call raises: its class and its message, and those of its cause.'''
    try:
        function(*args, **kwargs)
    except Exception as error:
        cause = error.__cause__
        return [type(error).__name__, str(error), type(cause).__name__ if cause else None, str(cause) if cause else ""]
    return ["nothing", "", None, ""]

def states(distribution=None):
    return {
        f"{row.kind}/{row.name}": [row.status, row.reason]
        for row in rows() if distribution in (None, row.distribution)
    }

"""
EPILOGUE = f"""
result["warnings"] = [str(one.message) for one in warned]
result["torch"] = "torch" in sys.modules
print({MARK!r} + json.dumps(result))
"""


@pytest.fixture(scope="session")
def clean_site(tmp_path_factory):
    """All that is installed here but the plugins, which would be found too; as links."""
    folder = tmp_path_factory.mktemp("clean") / "site-packages"
    folder.mkdir()
    places = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    for item in (item for place in places for item in Path(place).iterdir()):
        if not item.name.lstrip("_").startswith(("poplin", "editable__")) and not (folder / item.name).exists():
            (folder / item.name).symlink_to(item)
    return folder


@pytest.fixture
def run(tmp_path, clean_site):
    """Run a script in a process where `site` folders are installed; what it puts into `result` comes back."""

    def run(source, *sites, env=None, before=""):
        sites = [str(site) for site in sites] or [str(tmp_path)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("POPLIN_")}
        environ |= {
            "PYTHONPATH": os.pathsep.join([*sites, str(CORE_SOURCES), str(clean_site)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environ |= env or {}
        script = tmp_path / "script_of_the_test.py"
        script.write_text(f"{before}\n{PRELUDE}{textwrap.dedent(source)}{EPILOGUE}")
        done = subprocess.run(
            [sys.executable, "-S", str(script)], capture_output=True, text=True, timeout=90, env=environ
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.rpartition(MARK)[2])

    return run
