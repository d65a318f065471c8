"""Packages with one planted fault each, installed with real metadata: the check that names it fails, and no other."""

import sys

import pytest

from poplin.testing import PackagingCompliance, make_distribution

PLUGIN = """
from poplin import hookimpl, lazy


@hookimpl
def poplin_loggers():
    return {"acme": lazy("acme_poplin.logger:Lines")}
"""
LOGGER = """
from poplin.loggers import Logger


class Lines(Logger):
    def log_metrics(self, metrics, step=None):
        pass
"""
SOUND = {
    "entry_points": {"poplin.loggers": {"acme": "acme_poplin.plugin"}},
    "plugin": PLUGIN,
    "logger": LOGGER,
    "requires": ["poplin-core>=0.1,<0.2"],
}
ACCELERATOR_HOOK = "\n\n@hookimpl\ndef poplin_select_strategy(accelerator, number):\n    return None\n"
#: What is wrong → the check that says so, and the changes to the sound package.
FAULTS = {
    "nothing": (None, {}),
    "a typing error in the plugin module": (
        "its plugin modules can be imported",
        {"plugin": PLUGIN.replace("import hookimpl", "import hokimpl")},
    ),
    "a name that the metadata lacks": (
        "the names of its hooks are those of its metadata",
        {"plugin": PLUGIN.replace('{"acme":', '{"acme2": lazy("a:b"), "acme":')},
    ),
    "a hook with other arguments": (
        "its hooks are as specified",
        {"plugin": PLUGIN + ACCELERATOR_HOOK},
    ),
    "torch imported at load": ("its plugin modules are light", {"plugin": "import torch\n" + PLUGIN}),
    "a variable set at load": (
        "loading it changes nothing of the process",
        {"plugin": 'import os\n\nos.environ["ACME_THREADS"] = "1"\n' + PLUGIN},
    ),
    "warnings silenced at load": (
        "loading it changes nothing of the process",
        {"plugin": 'import warnings\n\nwarnings.filterwarnings("ignore")\n' + PLUGIN},
    ),
    "a thread started at load": (
        "loading it changes nothing of the process",
        {"plugin": "import threading\n\nthreading.Timer(2, print).start()\n" + PLUGIN},
    ),
    "a name of capitals": (
        ["its names can be written everywhere", "the names of its hooks are those of its metadata"],
        {"entry_points": {"poplin.loggers": {"acme": "acme_poplin.plugin", "Acme Lines": "acme_poplin.plugin"}}},
    ),
    "the name of a built-in": (
        "its names are free",
        {
            "entry_points": {"poplin.loggers": {"csv": "acme_poplin.plugin"}},
            "plugin": PLUGIN.replace('"acme":', '"csv":'),
        },
    ),
    "no range of cores": ("it says which cores it is written for", {"requires": ["torch"]}),
    "no upper bound": ("it says which cores it is written for", {"requires": ["poplin-core>=0.1"]}),
    "a class that needs an argument": (
        "each of its names makes an object",
        {"logger": LOGGER + "\n    def __init__(self, folder):\n        self.folder = folder\n"},
    ),
    "torch patched by its classes": (
        "its classes leave torch as it is",
        {"logger": "import torch\n\ntorch.save = print\n" + LOGGER},
    ),
    "a suite for a name that it lacks": (
        "the suites that it brings are for what it offers",
        {
            "entry_points": SOUND["entry_points"] | {"poplin.compliance": {"acme": "acme_poplin.compliance:Other"}},
            "compliance": "from poplin.testing import LoggerCompliance\n\n\n"
            "class Other(LoggerCompliance):\n    name = 'other'\n",
        },
    ),
    "a suite that exempts what is no check": (
        "the suites that it brings are for what it offers",
        {
            "entry_points": SOUND["entry_points"] | {"poplin.compliance": {"acme": "acme_poplin.compliance:Other"}},
            "compliance": "from poplin.testing import LoggerCompliance\n\n\n"
            "class Other(LoggerCompliance):\n    exempt = {'test_it_is_red_back': 'not a check'}\n",
        },
    ),
    "a suite that needs what is not there": (
        "the suites that it brings are for what it offers",
        {
            "entry_points": SOUND["entry_points"] | {"poplin.compliance": {"acme": "acme_poplin.compliance:Other"}},
            "compliance": "import acme_of_the_tests_only\n",
        },
    ),
    "a suite whose module ends the process": (
        "the suites that it brings are for what it offers",
        {
            "entry_points": SOUND["entry_points"] | {"poplin.compliance": {"acme": "acme_poplin.compliance:Other"}},
            "compliance": "import sys\n\nsys.exit(0)\n",
        },
    ),
    "a suite for a name that is none": (
        "the suites that it brings are for what it offers",
        {
            "entry_points": SOUND["entry_points"] | {"poplin.compliance": {"acme": "acme_poplin.compliance:Other"}},
            "compliance": "from poplin.testing import LoggerCompliance\n\n\n"
            "class Other(LoggerCompliance):\n    name = ''\n",
        },
    ),
    "a callbacks factory that is not there": (
        "its callbacks factories make callbacks",
        {"entry_points": SOUND["entry_points"] | {"poplin.callbacks_factory": {"acme": "acme_poplin.factory:make"}}},
    ),
    "a callbacks factory that needs an argument": (
        "its callbacks factories make callbacks",
        {
            "entry_points": SOUND["entry_points"] | {"callbacks_factory": {"acme": "acme_poplin.compliance:make"}},
            "compliance": "def make(fabric):\n    return []\n",
        },
    ),
    "a private module of the core": (
        "it uses public modules of poplin only",
        {"logger": LOGGER.replace("poplin.loggers import Logger", "poplin.loggers.logger import Logger")},
    ),
}
SLOW = [*FAULTS][5:]


@pytest.mark.parametrize("fault", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in FAULTS])
def test_the_check_that_names_the_fault_fails_and_no_other(tmp_path, monkeypatch, fault):
    expected, changes = FAULTS[fault]
    package = SOUND | changes
    make_distribution(
        tmp_path,
        "acme-poplin",
        "1.2",
        entry_points=package["entry_points"],
        modules={
            "acme_poplin/__init__.py": "",
            "acme_poplin/plugin.py": package["plugin"],
            "acme_poplin/logger.py": package["logger"],
            "acme_poplin/compliance.py": package.get("compliance", ""),
        },
        requires=package["requires"],
    )
    failed = checked(tmp_path, monkeypatch)
    assert set(failed) == wanted(expected), "\n".join(failed.values())


def wanted(expected):
    return {expected} if isinstance(expected, str) else set(expected or ())


def checked(site, monkeypatch):
    """check → message, of those that failed; what was imported of the package is forgotten afterwards."""
    from poplin import registry
    from poplin.testing import run_suite
    from poplin.testing.compliance import configured

    monkeypatch.syspath_prepend(str(site))
    registry.refresh()
    try:
        suite = configured(PackagingCompliance, distribution="acme-poplin")
        return {one.check: one.message for one in run_suite(suite) if one.status == "failed"}
    finally:
        monkeypatch.undo()
        registry.refresh()
        for name in [name for name in sys.modules if name.startswith("acme_poplin")]:
            del sys.modules[name]


def test_every_check_of_packages_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    named = {
        one for expected, _ in FAULTS.values() for one in ([expected] if isinstance(expected, str) else expected or [])
    }
    assert {one.title for one in requirements(PackagingCompliance)} == named
