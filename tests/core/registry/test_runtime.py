"""What a script registers by itself, and how it reaches the workers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_script_registers_names_in_every_form(run):
    result = run("""
        from poplin.strategies import Strategy, SingleDeviceStrategy

        class Mine(SingleDeviceStrategy):
            def __init__(self, overlap=False):
                super().__init__()
                self.overlap = overlap

        assert register("strategies", "mine", Mine) is Mine
        register("strategy", "fast", Mine, description="faster", overlap=True)
        register("strategies", "by-target", "poplin.strategies.single_device:SingleDeviceStrategy")
        register("strategies", "by-lazy", lazy("poplin.strategies.single_device:SingleDeviceStrategy"))

        @register("strategies", "decorated")
        class Other(Mine): ...

        for name in ("mine", "fast", "by-target", "by-lazy", "decorated"):
            result[name] = type(find("strategies", name).create()).__name__
        result["fast overlaps"] = find("strategies", "FAST").create().overlap
        result["provider"] = list(registry.provider_of(Mine()))
        result["built in"] = registry.provider_of(SingleDeviceStrategy).distribution
        result["runtime row"] = [[row.name, row.status, row.reason] for row in rows() if row.name == "fast"]
        result["picked"] = find("strategies", "runtime:mine").name
        registry.unregister("strategies", "mine")
        result["gone"] = attempt(find, "strategies", "mine")[0]
        registry.refresh()
        result["stays"] = find("strategies", "fast").name
    """)
    assert [result[name] for name in ("mine", "fast", "by-target", "by-lazy", "decorated")] == [
        "Mine",
        "Mine",
        "SingleDeviceStrategy",
        "SingleDeviceStrategy",
        "Other",
    ]
    assert result["fast overlaps"] is True
    assert result["provider"][:3] == ["runtime", "", "__main__:Mine"]
    assert result["built in"] == "poplin-core"
    assert result["runtime row"] == [["fast", "loaded", "faster"]]
    assert result["picked"] == "mine"
    assert result["gone"] == "UnknownNameError"
    assert result["stays"] == "fast"


def test_what_cannot_be_registered_is_refused_and_leaves_nothing(run):
    result = run("""
        class Mine: ...
        class Other: ...
        register("loggers", "taken", Mine)
        before = rows()
        for name, call in {
            "capital": lambda: register("loggers", "Mine", Mine),
            "empty": lambda: register("loggers", "", Mine),
            "no kind": lambda: register("planets", "mine", Mine),
            "no name": lambda: register("loggers"),
            "no class": lambda: register("loggers", "mine", 3),
            "no target": lambda: register("loggers", "mine", "no target"),
            "role": lambda: register("strategies", "auto", Mine),
            "built in": lambda: register("loggers", "CSV".lower(), Mine),
            "taken": lambda: register("loggers", "taken", Other),
            "two": lambda: register(Mine(), "mine"),
            "no hooks": lambda: register(Mine()),
            "a class": lambda: register(Mine),
            "unknown": lambda: registry.unregister("loggers", "unknown"),
            "built-in out": lambda: registry.unregister("loggers", "csv"),
        }.items():
            result[name] = attempt(call)[:2]
        result["left"] = [row for row in rows() if row not in before]
        result["again"] = attempt(register, "loggers", "taken", Mine)[0]
        result["override"] = attempt(register, "loggers", "taken", Other, override=True)[0]
        result["now"] = find("loggers", "taken").target_class().__name__
    """)
    expected = {
        "capital": "ArgumentValueError",
        "empty": "ArgumentValueError",
        "no kind": "ArgumentValueError",
        "no name": "ArgumentTypeError",
        "no class": "ArgumentTypeError",
        "no target": "ArgumentValueError",
        "role": "ArgumentValueError",
        "built in": "NameConflictError",
        "taken": "ArgumentValueError",
        "two": "ArgumentTypeError",
        "no hooks": "PluginValidationError",
        "a class": "PluginValidationError",
        "unknown": "ArgumentValueError",
        "built-in out": "ArgumentValueError",
    }
    assert {name: result[name][0] for name in expected} == expected
    assert "unregister" in result["taken"][1]
    assert result["left"] == []
    assert (result["again"], result["override"], result["now"]) == ("nothing", "nothing", "Other")


def test_a_notebook_cell_that_runs_again_replaces_what_it_registered(run):
    result = run("""
        for number in range(2):
            class Mine:
                answer = number
            register("loggers", "mine", Mine)
        result["answer"] = find("loggers", "mine").target_class().answer
    """)
    assert result["answer"] == 1


def test_an_object_with_hookimpls_is_registered_whole_or_not_at_all(run):
    result = run("""
        class Plugin:
            def __init__(self, *names): self.names = names
            @hookimpl
            def poplin_loggers(self): return dict.fromkeys(self.names, print)
        class Wrong(Plugin):
            @hookimpl
            def poplin_no_such_hook(self): ...
        one = Plugin("one", "two")
        register(one)
        result["clash"] = attempt(register, Plugin("three", "two"))[0]
        result["wrong"] = attempt(register, Wrong("four"))[0]
        result["shadow"] = attempt(register, Plugin("csv"))[0]
        result["listed"] = [row.name for row in rows() if row.distribution == "runtime"]
        result["part"] = attempt(registry.unregister, "loggers", "one")[0]
        registry.unregister(one)
        result["after"] = [row.name for row in rows() if row.distribution == "runtime"]
        second = Plugin("two")
        register(second)
        result["second"] = find("loggers", "two").name
    """)
    assert result["clash"] == "ArgumentValueError"
    assert result["wrong"] == "PluginValidationError"
    assert result["shadow"] == "NameConflictError"
    assert result["listed"] == ["one", "two"]
    assert result["part"] == "ArgumentValueError"
    assert result["after"] == []
    assert result["second"] == "two"


def test_a_registration_under_the_name_of_an_installed_plugin_is_a_conflict(run, tmp_path):
    from poplin.testing.distributions import make_distribution, plugin_source

    source = plugin_source("loggers", "acme", target="acme_p:NOTHING")
    make_distribution(tmp_path, "acme", "1.0", {"poplin.loggers": {"acme": "acme_p"}}, {"acme_p.py": source})
    result = run("""
        class Mine: ...
        register("loggers", "acme", Mine)
        result["bare"] = attempt(find, "loggers", "acme")
        result["mine"] = find("loggers", "runtime:acme").target_class().__name__
        result["theirs"] = find("loggers", "acme:acme").provider.distribution
    """)
    assert result["bare"][0] == "NameConflictError"
    assert "runtime:acme" in result["bare"][1]
    assert (result["mine"], result["theirs"]) == ("Mine", "acme")


def test_registrations_reach_spawned_workers_ahead_of_everything_else(run, tmp_path):
    (tmp_path / "own_plugin.py").write_text(
        "from poplin import hookimpl\n@hookimpl\ndef poplin_loggers(): return {'from-module': print}\n"
    )
    result = run("""
        import multiprocessing, pickle

        class Mine:
            def __init__(self, size=1): self.size = size

        class Plugin:
            @hookimpl
            def poplin_launchers(self): return {"from-object": Mine}

        def work(table, queue):
            registry.install_runtime_table(table)
            registry.install_runtime_table(table)
            queue.put([
                [row.kind + "/" + row.name for row in rows() if row.distribution == "runtime"],
                find("loggers", "mine").offer().size,
            ])

        if __name__ == "__main__":
            import own_plugin
            register("loggers", "mine", Mine, size=3)
            register("loggers", "plain", "poplin.loggers.csv:CSVLogger")
            register(own_plugin)
            register(Plugin())
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(pickle.loads(pickle.dumps(registry.runtime_table())), queue))
            process.start()
            result["worker"] = queue.get(timeout=20)
            process.join()
    """)
    assert result["worker"] == [
        ["launchers/from-object", "loggers/from-module", "loggers/mine", "loggers/plain"],
        3,
    ]


def test_what_cannot_travel_is_named_at_the_launch(run):
    result = run("""
        def inside():
            class Local: ...
            return Local
        register("loggers", "fine", "poplin.loggers.csv:CSVLogger")
        register("loggers", "local", inside())
        result["local"] = attempt(registry.runtime_table)
        registry.unregister("loggers", "local")
        class Plugin:
            lock = None
            @hookimpl
            def poplin_fabric_closed(self): ...
        plugin = Plugin()
        import threading
        plugin.lock = threading.Lock()
        register(plugin)
        result["plugin"] = attempt(registry.runtime_table)
        registry.unregister(plugin)
        table = registry.runtime_table()
        result["entries"] = len(table.entries)
        class Vanishing: ...
        register("loggers", "vanishing", Vanishing)
        table = registry.runtime_table()
        registry.unregister("loggers", "vanishing")
        del Vanishing
        result["vanished"] = attempt(registry.install_runtime_table, table)
    """)
    assert result["local"][0] == "LaunchError"
    assert "'loggers/local'" in result["local"][1]
    assert result["plugin"][0] == "LaunchError"
    assert "__main__:Plugin" in result["plugin"][1]
    assert result["entries"] == 1
    assert result["vanished"][0] == "LaunchError"
    assert "'loggers/vanishing'" in result["vanished"][1]


def test_a_subclass_of_a_plugins_class_belongs_to_that_plugin(run, tmp_path):
    from poplin.testing.distributions import make_distribution, plugin_source

    make_distribution(
        tmp_path,
        "acme",
        "1.0",
        {"poplin.loggers": {"acme": "acme.plugin"}},
        {
            "acme/plugin.py": plugin_source("loggers", "acme", target="acme.logger:AcmeLogger"),
            "acme/logger.py": "class AcmeLogger:\n    def log_metrics(self, metrics, step=None): ...",
        },
    )
    result = run("""
        from acme.logger import AcmeLogger
        class Mine(AcmeLogger): ...
        owner = lambda thing: provider.distribution if (provider := registry.provider_of(thing)) else None
        result["not loaded"] = [owner(AcmeLogger()), "acme.plugin" in sys.modules]
        find("loggers", "acme").create()
        result["owners"] = [owner(AcmeLogger), owner(Mine()), owner(3), owner(dict), owner(find), owner(type)]
    """)
    assert result["not loaded"] == ["acme", False]
    assert result["owners"] == ["acme", "acme", None, None, None, None]


TYPED_PLUGIN = Path(__file__).with_name("typed_plugin.py")


def test_a_plugin_module_that_a_script_registers_takes_part_in_everything(run, tmp_path):
    shutil.copy(TYPED_PLUGIN, tmp_path)
    result = run("""
        import typed_plugin
        register(typed_plugin)
        class Accelerator:
            def name(self): return "cpu"
        result["auto"] = hookspecs.select_strategy(
            accelerator=Accelerator(), num_devices=1, num_nodes=1, interactive=False
        )[0]
        result["redirect"] = [hookspecs.redirect_strategy(name, None)[0] for name in ("nothing", "typed")]
        result["calls"] = typed_plugin.register_counter().calls
    """)
    assert result["auto"] == "typed"
    assert result["redirect"] == ["typed", None]
    assert result["calls"] == 0


@pytest.mark.slow
def test_mypy_accepts_a_typed_plugin_in_strict_mode():
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(TYPED_PLUGIN)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
