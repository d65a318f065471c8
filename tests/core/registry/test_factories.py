"""Callback factories of installed packages, in all four groups."""

import random

from poplin.testing.distributions import make_distribution

GROUPS = [
    "callbacks_factory",
    "poplin.callbacks_factory",
    "lightning.fabric.callbacks_factory",
    "lightning_fabric.callbacks_factory",
]
SHOW = """
    result["factories"] = [
        [one.name, one.provider.distribution, one.function.__name__ if one.function else None,
         type(one.error).__name__ if one.error else None]
        for one in registry.callback_factories()
    ]
"""


def test_one_function_found_in_all_four_groups_is_there_once(run, tmp_path):
    source = "import builtins\nbuiltins.imports = getattr(builtins, 'imports', 0) + 1\ndef make(): ...\nalias = make"
    make_distribution(
        tmp_path,
        "acme",
        "1.0",
        {
            group: {"acme": "acme_callbacks:make", f"other{number}": "acme_callbacks:alias"}
            for number, group in enumerate(GROUPS)
        },
        {"acme_callbacks.py": source},
    )
    make_distribution(tmp_path, "renamed", "1.0", {GROUPS[2]: {"again": "acme_callbacks:make"}})
    result = run(SHOW + SHOW + "    import builtins\n    result['imports'] = builtins.imports\n")
    assert result["factories"] == [["acme", "acme", "make", None]]
    assert result["imports"] == 1


def test_the_order_is_that_of_distributions_and_names(run, tmp_path):
    names = ["delta", "alpha", "Charlie", "bravo"]
    for number, name in enumerate(random.Random(1).sample(names, len(names))):
        source = "".join(f"def make_{letter}(): ...\n" for letter in "ba")
        points = {f"{letter}": f"{name.lower()}_c:make_{letter}" for letter in "ba"}
        make_distribution(tmp_path, name, "1.0", {GROUPS[number]: points}, {f"{name.lower()}_c.py": source})
    result = run(SHOW)
    assert [[one[1], one[0]] for one in result["factories"]] == [
        [name, letter] for name in sorted(names, key=str.lower) for letter in "ab"
    ]


def test_a_broken_factory_has_its_error_and_the_others_are_there(run, tmp_path):
    for name, source in {
        "raises": "raise RuntimeError('no')",
        "leaves": "raise SystemExit",
        "panics": "class PanicException(BaseException): ...\nraise PanicException",
        "lacks": "",
        "coroutine": "async def make(): ...",
        "number": "make = 3",
        "fine": "def make(): return []",
    }.items():
        make_distribution(tmp_path, name, "1.0", {GROUPS[1]: {name: f"{name}_c:make"}}, {f"{name}_c.py": source})
    make_distribution(tmp_path, "later", "1.0", {GROUPS[1]: {"later": "fine_c:make"}}, requires=["poplin-core>8"])
    result = run(SHOW + "    result['rows'] = {row.distribution: row.status for row in rows()}\n")
    assert {one[0]: one[3] for one in result["factories"]} == {
        "coroutine": "PluginValidationError",
        "fine": None,
        "lacks": "AttributeError",
        "leaves": "SystemExit",
        "number": "PluginValidationError",
        "panics": "PanicException",
        "raises": "RuntimeError",
    }
    assert result["rows"]["raises"] == "failed"
    assert result["rows"]["fine"] == "loaded"
    assert result["rows"]["later"] == "incompatible"


def test_factories_are_not_imported_before_they_are_asked_for(run, tmp_path):
    make_distribution(tmp_path, "acme", "1.0", {GROUPS[0]: {"acme": "acme_c:make"}}, {"acme_c.py": "def make(): ..."})
    result = run("rows(); names('loggers'); registry.ambient(); result['imported'] = 'acme_c' in sys.modules")
    assert result["imported"] is False
