"""A name looked up: what it loads, and the six ways in which it fails."""

from poplin.testing.distributions import make_distribution, plugin_source

CLASS = """
from poplin.strategies import SingleDeviceStrategy

class Acme(SingleDeviceStrategy):
    def __init__(self, overlap=False):
        super().__init__()
        self.overlap = overlap
"""


def acme(site, *names, distribution="acme-poplin", package="acme", version="1.0", **kwargs):
    return make_distribution(
        site,
        distribution,
        version,
        {"poplin.strategies": dict.fromkeys(names, f"{package}.plugin")},
        {
            f"{package}/__init__.py": "",
            f"{package}/plugin.py": plugin_source("strategies", *names, target=f"{package}.strategy:Acme"),
            f"{package}/strategy.py": CLASS,
        },
        **kwargs,
    )


def test_looking_up_one_name_imports_that_plugin_and_no_other(run, tmp_path):
    acme(tmp_path, "acme", "acme_fast")
    acme(tmp_path, "other", distribution="other", package="other")
    result = run("""
        result["before"] = [name for name in sys.modules if name.startswith(("acme", "other"))]
        found = find("strategy", "ACME-Fast")
        result["found"] = [found.kind, found.name, *found.provider[:3]]
        result["after"] = sorted(name for name in sys.modules if name.startswith(("acme", "other")))
        expected = ("acme", "acme_fast", "other", "single_device")
        result["names"] = [name for name in names("strategies") if name in expected]
        result["states"] = states("acme-poplin") | states("other")
        result["built in"] = find("strategies", "Single-Device").name
    """)
    assert result["before"] == []
    assert result["found"] == ["strategies", "acme_fast", "acme-poplin", "1.0", "acme.plugin"]
    assert result["after"] == ["acme", "acme.plugin"]
    assert result["names"] == ["acme", "acme_fast", "other", "single_device"]
    assert {name: state[0] for name, state in result["states"].items()} == {
        "strategies/acme": "loaded",
        "strategies/acme_fast": "loaded",
        "strategies/other": "available",
    }
    assert result["built in"] == "single_device"
    assert not result["torch"]
    assert result["warnings"] == []


def test_each_kind_is_offered_by_its_own_hook(run, tmp_path):
    kinds = ["accelerators", "strategies", "precisions", "launchers", "environments", "loggers", "checkpoint_ios"]
    for kind in kinds:
        make_distribution(
            tmp_path,
            f"a-{kind}",
            "1.0",
            {f"poplin.{kind}": {"mine": f"{kind}_p"}},
            {f"{kind}_p.py": plugin_source(kind, "mine")},
        )
    result = run(f"""
        result["found"] = [find(kind, "mine").kind for kind in {kinds}]
        result["kinds"] = registry.kinds_offering("mine")
        result["listed"] = [row.kind for row in rows() if row.name == "mine"]
    """)
    assert result["found"] == result["kinds"] == result["listed"] == kinds


def test_an_offer_is_made_with_its_presets_and_is_checked(run, tmp_path):
    make_distribution(
        tmp_path,
        "acme",
        "1.0",
        {"poplin.strategies": dict.fromkeys(["right", "wrong", "raises", "absent", "leaves", "made"], "acme.plugin")},
        {
            "acme/__init__.py": "",
            "acme/strategy.py": CLASS,
            "acme/gone.py": "import a_module_that_is_not_there",
            "acme/plugin.py": """
                from poplin import hookimpl, lazy

                class Wrong: ...
                def raises(): raise OSError("no such thing")
                def leaves(): raise SystemExit(3)
                def made():
                    from acme.strategy import Acme
                    return Acme(overlap=True)

                @hookimpl
                def poplin_strategies():
                    return {
                        "right": lazy("acme.strategy:Acme", overlap=True), "wrong": Wrong, "raises": raises,
                        "absent": lazy("acme.gone:Acme"), "leaves": leaves, "made": made,
                    }
            """,
        },
    )
    result = run("""
        found = find("strategies", "right")
        value = found.create()
        result["right"] = [type(value).__name__, value.overlap, found.target_class() is type(value)]
        result["provider"] = registry.provider_of(value).distribution
        made = find("strategies", "made")
        result["made"] = [made.target_class().__name__, made.create().overlap]
        for name in ("wrong", "raises", "absent", "leaves"):
            result[name] = attempt(find("strategies", name).create)
        result["again"] = attempt(find("strategies", "absent").create)
        result["states"] = states("acme")
        result["failures"] = [[one.stage, "Traceback" in one.traceback] for one in registry.failures()]
    """)
    assert result["right"] == ["Acme", True, True]
    assert result["provider"] == "acme"
    assert result["made"] == ["Acme", True]
    for name, cause, words in [
        ("wrong", "TypeError", ["is no poplin.strategies.Strategy", "construction"]),
        ("raises", "OSError", ["no such thing"]),
        ("absent", "ModuleNotFoundError", ["a_module_that_is_not_there", "Stage: target"]),
        ("leaves", "SystemExit", ["3"]),
    ]:
        assert result[name][0] == "BrokenPluginError", name
        assert result[name][2] == cause
        for word in ["acme 1.0", name, *words]:
            assert word in result[name][1]
    assert result["again"] == result["absent"]
    states = result["states"]
    assert states["strategies/right"][0] == "loaded"
    assert states["strategies/raises"] == ["failed", "construction: OSError: no such thing"]
    assert states["strategies/absent"][0] == "failed"
    assert sorted(stage for stage, _ in result["failures"]) == ["construction"] * 3 + ["target"]
    assert ["target", True] in result["failures"]


def test_each_failed_look_up_says_in_which_way_it_failed(run, tmp_path):
    acme(tmp_path, "acme", "acme_fast")
    acme(tmp_path, "blocked", distribution="blocked-one", package="blocked_one")
    acme(tmp_path, "later", distribution="later", package="later", requires=["poplin-core>=9.5", "numpy"])
    acme(tmp_path, "twice", distribution="first", package="first")
    acme(tmp_path, "twice", distribution="second", package="second")
    make_distribution(
        tmp_path, "broken", "3.1", {"poplin.strategies": {"cracked": "broken.plugin"}}, {"broken/plugin.py": "1 / 0"}
    )
    result = run(
        """
        for name in ("acmee", "nothing_like_it", "deepspeed", "poplin-fsdp:fsdp", "cracked", "blocked", "later",
                     "twice", "auto", "acme-poplin:later", "nobody:acme", "Bad Name!", "launchers/spawn"):
            result[name] = attempt(find, "strategies", name)
            assert name == "cracked" or result[name] == attempt(registry.locate, "strategies", name)
        result["no kind"] = attempt(find, "planets", "acme")
        result["no string"] = attempt(find, "strategies", 3)
        result["picked"] = find("strategies", "Second:twice").provider.distribution
        result["kinds"] = [registry.kinds_offering(name) for name in ("acme", "torch", "x")]
        result["imported"] = [name for name in ("later", "blocked_one", "first.plugin") if name in sys.modules]
        result["states"] = {row.distribution: row.status for row in rows() if row.kind == "strategies"}
        result["names"] = names("strategies")
        """,
        env={"POPLIN_DISABLE_PLUGINS": "blocked-one"},
    )
    for name, error, words in [
        ("acmee", "UnknownNameError", ["'acmee'", "Did you mean 'acme'", "acme_fast"]),
        ("nothing_like_it", "UnknownNameError", ["single_device", "poplin plugins"]),
        ("deepspeed", "NotInstalledError", ["pip install poplin-deepspeed"]),
        ("poplin-fsdp:fsdp", "NotInstalledError", ["pip install poplin-fsdp"]),
        (
            "cracked",
            "BrokenPluginError",
            ["broken 3.1", "import", "ZeroDivisionError", "POPLIN_DISABLE_PLUGINS=broken"],
        ),
        ("blocked", "BlockedNameError", ["blocked-one", "POPLIN_DISABLE_PLUGINS"]),
        ("later", "IncompatiblePluginError", [">=9.5", "poplin-core 0.1.0 is installed", "pip install -U later"]),
        ("twice", "NameConflictError", ["first 1.0", "second 1.0", "'first:twice'", "'second:twice'"]),
        ("auto", "UnknownNameError", ["role"]),
        ("acme-poplin:later", "UnknownNameError", ["acme-poplin 1.0 is installed", "acme, acme_fast"]),
        ("nobody:acme", "UnknownNameError", ["'nobody'", "offered by acme-poplin"]),
        ("Bad Name!", "UnknownNameError", ["'Bad Name!'"]),
        ("launchers/spawn", "ArgumentValueError", ["launchers"]),
        ("no kind", "ArgumentValueError", ["planets", "strategies"]),
        ("no string", "ArgumentTypeError", ["3"]),
    ]:
        assert result[name][0] == error, name
        for word in words:
            assert word in result[name][1], (name, word, result[name][1])
    assert result["cracked"][2] == "ZeroDivisionError"
    assert result["picked"] == "second"
    assert result["kinds"] == [["strategies"], ["checkpoint_ios"], []]
    assert result["imported"] == []
    assert {result["states"][one] for one in ("first", "second")} <= {"conflict", "loaded"}
    assert result["states"]["blocked-one"] == "blocked"
    assert result["states"]["later"] == "incompatible"
    assert "twice" in result["names"]
    assert not {"later", "blocked"} & set(result["names"])


def test_a_built_in_cannot_be_shadowed(run, tmp_path):
    acme(tmp_path, "single_device", "mine")
    result = run("""
        result["bare"] = find("strategies", "single_device").provider.distribution
        result["picked"] = find("strategies", "acme-poplin:single_device").provider.distribution
        result["states"] = states("acme-poplin")
    """)
    assert (result["bare"], result["picked"]) == ("poplin-core", "acme-poplin")
    assert result["states"]["strategies/single_device"][0] == "conflict"
    assert "can't be shadowed" in result["states"]["strategies/single_device"][1]


def test_blocking_one_of_two_ends_a_conflict(run, tmp_path):
    for one in ("first", "second"):
        acme(tmp_path, "twice", distribution=one, package=one)
    source = """
        result["found"] = find("strategies", "twice").provider.distribution
        result["states"] = {row.distribution: row.status for row in rows() if row.name == "twice"}
    """
    result = run(source, env={"POPLIN_DISABLE_PLUGINS": "first"})
    assert (result["found"], result["states"]["first"]) == ("second", "blocked")
    assert run(source, env={"POPLIN_PLUGINS": "first:twice"})["found"] == "first"


def test_one_distribution_found_several_times_is_no_conflict(run, tmp_path):
    acme(tmp_path / "lib", "acme")
    (tmp_path / "lib64").symlink_to(tmp_path / "lib")
    make_distribution(
        tmp_path / "lib", "acme_poplin", None, {"poplin.strategies": {"acme": "acme.plugin"}}, kind="egg-info"
    )
    (tmp_path / "stale" / "acme_poplin-0.9.dist-info").mkdir(parents=True)
    result = run(
        """
        result["rows"] = [[row.name, row.version, row.status] for row in rows() if row.distribution == "acme-poplin"]
        result["found"] = find("strategies", "acme").provider.distribution
        """,
        tmp_path / "stale",
        tmp_path / "lib64",
        tmp_path / "lib",
    )
    assert result["rows"] == [["acme", "1.0", "available"]]


def test_an_order_of_roles_of_candidates_and_of_rows_that_only_names_decide(run, tmp_path):
    for number, name in enumerate(["delta", "Alpha", "charlie", "bravo"]):
        make_distribution(
            tmp_path / f"site{number}",
            name,
            "1.0",
            {"poplin.environments": {"auto": f"{name.lower()}_p", name.lower(): f"{name.lower()}_p"}},
            {f"{name.lower()}_p.py": plugin_source("environments", name.lower())},
        )
    make_distribution(
        tmp_path, "quiet", "1.0", {"poplin.environments": {"quiet": "quiet_p"}}, {"quiet_p.py": "raise Exception"}
    )
    make_distribution(
        tmp_path,
        "cracked",
        "1.0",
        {"poplin.environments": {"auto": "cracked_p", "c": "cracked_p"}},
        {"cracked_p.py": "1 / 0"},
    )
    sites = [tmp_path, *(tmp_path / f"site{number}" for number in range(4))]
    source = """
        mine = lambda entries: [one for one in entries if one not in ("slurm", "lsf", "mpi", "kubeflow")]
        candidates = registry.role_candidates("environments", "auto")
        result["found"] = mine([one.name for one in candidates if isinstance(one, registry.Found)])
        failures = [one for one in candidates if isinstance(one, registry.Failure)]
        result["failed"] = [
            [one.provider.distribution, one.stage, one.kind, type(one.error).__name__] for one in failures
        ]
        result["rows"] = mine([row.name for row in rows() if row.kind == "environments" and row.status != "role"])
        result["quiet"] = "quiet_p" in sys.modules
    """
    results = [run(source, *order) for order in (sites, sites[::-1])]
    for result in results:
        assert sorted(result["found"]) == ["alpha", "bravo", "charlie", "delta", "local", "torchrun"]
        assert result["failed"] == [["cracked", "import", "environments", "ZeroDivisionError"]]
        assert not result["quiet"]
    assert results[0] == results[1]


def test_the_registry_works_where_there_is_no_metadata_at_all(run, tmp_path):
    result = run(
        """
        sys.path = [place for place in sys.path if "site-packages" not in place and place != str(sys.argv)]
        sys.path = [place for place in sys.path if not place.endswith("/site")]
        registry.refresh()
        class Mine: ...
        register("strategies", "mine", Mine)
        result["found"] = [find("strategies", "mine").name, find("strategies", "single_device").name]
        result["distributions"] = sorted({row.distribution for row in rows()})
        """,
        tmp_path / "nowhere",
    )
    assert result["found"] == ["mine", "single_device"]
    assert result["distributions"] == ["poplin-core", "runtime"]


def test_a_first_scan_that_fails_does_not_poison_the_second(run, tmp_path):
    acme(tmp_path, "acme")
    result = run("""
        from poplin.registry import discovery
        real = discovery.scan
        def failing(path):
            discovery.scan = real
            raise MemoryError("for once")
        discovery.scan = failing
        result["first"] = attempt(names, "strategies")
        result["second"] = "acme" in names("strategies")
    """)
    assert result["first"][0] == "MemoryError"
    assert result["second"]


def test_a_thousand_distributions_are_scanned_once_and_one_is_imported(run, tmp_path):
    for number in range(950):
        make_distribution(tmp_path, f"plain-{number}", "1.0", {"console_scripts": {"x": "y:z"}})
    for number in range(50):
        acme(tmp_path, f"acme-{number}", distribution=f"plugin-{number}", package=f"plugin_{number}")
    result = run("""
        from poplin.registry import discovery
        scans = []
        real = discovery.scan
        discovery.scan = lambda path: scans.append(1) or real(path)
        for number in range(20):
            names("strategies"); rows(); find("strategies", "acme-7")
        result["scans"] = len(scans)
        result["imported"] = [name for name in sys.modules if name.startswith("plugin_") and name.endswith(".plugin")]
        result["plugins"] = len([row for row in rows() if row.distribution.startswith("plugin-")])
    """)
    assert result["scans"] == 1
    assert result["imported"] == ["plugin_7.plugin"]
    assert result["plugins"] == 50


def test_the_path_may_change_and_what_is_installed_may_too(run, tmp_path):
    acme(tmp_path / "later", "acme")
    result = run(f"""
        result["before"] = "acme" in names("strategies")
        sys.path.append({str(tmp_path / "later")!r})
        result["after"] = "acme" in names("strategies")
        import pathlib, shutil
        find("strategies", "acme")
        shutil.rmtree(pathlib.Path({str(tmp_path / "later")!r}) / "acme_poplin-1.0.dist-info")
        result["scanned once"] = "acme" in names("strategies")
        registry.refresh()
        result["gone"] = attempt(find, "strategies", "acme")[0]
    """)
    assert result["before"] is False
    assert result["after"] is True
    assert result["scanned once"] is True
    assert result["gone"] == "UnknownNameError"


def test_names_that_differ_in_case_and_separators_are_one(run, tmp_path):
    acme(tmp_path, "my_strategy", distribution="first", package="first")
    acme(tmp_path, "my-strategy", distribution="second", package="second")
    make_distribution(tmp_path, "Third.One", "1.0", {"poplin.strategies": {"My.Other": "x", "fine": "x"}})
    result = run("""
        result["conflict"] = attempt(find, "strategies", "MY.STRATEGY")
        result["states"] = states("Third.One")
        result["found"] = attempt(find, "strategies", "third-one:my-other")
    """)
    assert result["conflict"][0] == "NameConflictError"
    assert result["states"]["strategies/My.Other"][0] == "failed"
    assert result["found"][0] == "BrokenPluginError"
    assert "can't be registered" in result["found"][1]
