"""What nobody would do on purpose."""

from poplin.testing.distributions import make_distribution, plugin_source

GROUP = "poplin.strategies"


def install(site, name, source, names=(), **kwargs):
    module = f"{name.lower().replace('-', '_')}_p"
    points = {GROUP: dict.fromkeys(names or (name.lower(),), module)}
    return make_distribution(site, name, kwargs.pop("version", "1.0"), points, {f"{module}.py": source}, **kwargs)


def test_distributions_that_bear_the_names_of_the_registry_itself(run, tmp_path):
    for name in ("runtime", "Poplin.Core"):
        install(tmp_path, name, "raise Exception", ["single_device", "usurper"])
    folder = install(tmp_path, "strange", plugin_source("strategies", "strange"))
    (folder / "METADATA").write_text("Name: ../evil: thing\nVersion: 1 ; 2\n")
    result = run("""
        class Mine: ...
        register("strategies", "mine", Mine)
        result["built in"] = find("strategies", "single_device").provider.distribution
        result["mine"] = find("strategies", "runtime:mine").name
        result["usurper"] = attempt(find, "strategies", "usurper")[0]
        result["strange"] = find("strategies", "strange").provider.distribution
    """)
    assert result == {
        **result,
        "built in": "poplin-core",
        "mine": "mine",
        "usurper": "UnknownNameError",
        "strange": "strange",
    }


def test_another_version_that_comes_first_on_the_path_is_another_plugin(run, tmp_path):
    old = plugin_source("strategies", "acme", "old")
    new = plugin_source("strategies", "acme", "new")
    install(tmp_path / "old", "acme", old, ["acme", "old"])
    install(tmp_path / "new", "acme", new, ["acme", "new"], version="2.0")
    result = run(
        f"""
        result["first"] = find("strategies", "acme").provider.version
        sys.path.insert(0, {str(tmp_path / "new")!r})
        result["stale module"] = attempt(find, "strategies", "new")[:2]
        del sys.modules["acme_p"]
        registry.refresh()
        result["second"] = find("strategies", "new").provider.version
        """,
        tmp_path / "old",
    )
    assert result["first"] == "1.0"
    assert result["stale module"][0] == "BrokenPluginError"
    assert "['acme', 'new']" in result["stale module"][1]
    assert result["second"] == "2.0"


def test_a_direct_import_that_meets_a_look_up_in_another_thread_ends(run, tmp_path):
    ask = "import time\ntime.sleep(0.5)\nfrom poplin.registry import find\nfind('strategies', 'right')\n"
    install(tmp_path, "left", ask + plugin_source("strategies", "left"))
    install(tmp_path, "right", "import time\ntime.sleep(0.2)\nimport left_p\n" + plugin_source("strategies", "right"))
    result = run("""
        import threading
        from poplin.registry import manager
        manager.PATIENCE = 0.5
        import importlib
        outcomes = {}
        def direct():
            try: outcomes["direct"] = importlib.import_module("left_p").__name__
            except Exception as error: outcomes["direct"] = type(error).__name__
        def looked_up(): outcomes["right"] = attempt(find, "strategies", "right")[0]
        threads = [threading.Thread(target=direct), threading.Thread(target=looked_up)]
        [thread.start() for thread in threads]
        [thread.join(20) for thread in threads]
        result["alive"] = [thread.is_alive() for thread in threads]
        result["outcomes"] = len(outcomes)
        result["in the end"] = attempt(find, "strategies", "right")[0]
    """)
    assert result["alive"] == [False, False]
    assert result["outcomes"] == 2
    assert result["in the end"] == "nothing"


def test_an_interrupt_during_an_import_leaves_the_plugin_to_be_loaded_later(run, tmp_path):
    source = "import builtins\nif not hasattr(builtins, 'calm'): raise KeyboardInterrupt\n"
    install(tmp_path, "acme", source + plugin_source("strategies", "acme"))
    result = run("""
        import builtins
        try:
            find("strategies", "acme")
        except KeyboardInterrupt:
            result["interrupted"] = True
        builtins.calm = True
        result["later"] = find("strategies", "acme").name
    """)
    assert result == {**result, "interrupted": True, "later": "acme"}


def test_errors_without_a_message_and_errors_that_cannot_be_shown(run, tmp_path):
    install(tmp_path, "mute", "raise RuntimeError")
    install(tmp_path, "evil", "class Evil(Exception):\n    def __str__(self): raise ValueError\nraise Evil")
    result = run("""
        result["mute"] = attempt(find, "strategies", "mute")[1]
        try:
            find("strategies", "evil")
        except Exception as error:
            result["evil"] = str(error)
        result["rows"] = [row.reason for row in rows() if row.status == "failed"]
    """)
    assert "no message" in result["mute"]
    assert "can't be shown" in result["evil"]
    assert len(result["rows"]) == 2


def test_the_built_ins_may_be_blocked_and_nothing_breaks(run):
    result = run(
        """
        result["names"] = [names(kind) for kind in ("accelerators", "strategies", "loggers")]
        result["error"] = attempt(find, "strategies", "single_device")[0]
        result["candidates"] = registry.role_candidates("accelerators", "auto")
        """,
        env={"POPLIN_DISABLE_PLUGINS": "poplin-core"},
    )
    assert result["names"] == [[], [], []]
    assert result["error"] == "BlockedNameError"
    assert result["candidates"] == []


def test_names_of_ambient_plugins_may_have_any_form_and_can_be_blocked_all_the_same(run, tmp_path):
    source = "from poplin import hookimpl\n@hookimpl\ndef poplin_fabric_created(): ..."
    make_distribution(tmp_path, "acme", "1.0", {"poplin.ambient": {"My/Guard:1": "guard_p"}}, {"guard_p.py": source})
    result = run(
        "registry.ambient(); result['in'] = 'guard_p' in sys.modules", env={"POPLIN_DISABLE_PLUGINS": "my/guard:1"}
    )
    assert result["in"] is False
    assert result["warnings"] == []


def test_a_plugin_that_quarantined_itself_in_a_hook_tells_so_when_it_is_asked_for_by_name(run, tmp_path):
    source = plugin_source("strategies", "acme") + "@hookimpl\ndef poplin_select_strategy(): raise OSError('no quota')"
    install(tmp_path, "acme", source, ["auto", "acme"])
    result = run("""
        result["before"] = attempt(find, "strategies", "acme")[0]
        hookspecs.select_strategy(accelerator=0, num_devices=1, num_nodes=1, interactive=False)
        result["after"] = attempt(find, "strategies", "acme")
    """)
    assert result["before"] == "nothing"
    assert result["after"][0] == "BrokenPluginError"
    assert "call of poplin_select_strategy" in result["after"][1]
    assert result["after"][2] == "OSError"


def test_a_plugin_module_that_replaces_itself_is_taken_for_what_it_became(run, tmp_path):
    source = """
import sys
from poplin import hookimpl, lazy

class Plugin:
    @hookimpl
    def poplin_strategies(self):
        return {"acme": lazy("acme.x:Y")}

sys.modules[__name__] = Plugin()
"""
    install(tmp_path, "acme", source)
    assert run("result['found'] = find('strategies', 'acme').name")["found"] == "acme"
