"""Plugins that misbehave while they are loaded, and everybody else who must not notice."""

import pytest

from poplin.testing.distributions import make_distribution, plugin_source

GROUP = "poplin.strategies"


def install(site, name, source, names=(), group=GROUP, **kwargs):
    names = names or (name,)
    module = f"{name}_plugin"
    return make_distribution(
        site, name, "1.0", {group: dict.fromkeys(names, module)}, {f"{module}.py": source}, **kwargs
    )


BROKEN = {
    "raises": ("raise RuntimeError('out of order')", "import", ["RuntimeError", "out of order"]),
    "leaves": ("import sys; sys.exit(7)", "import", ["SystemExit", "7"]),
    "panics": (
        "class PanicException(BaseException): ...\nraise PanicException('native library panicked')",
        "import",
        ["PanicException", "native library panicked"],
    ),
    "syntax": ("def broken(:", "import", ["SyntaxError"]),
    "lacks": ("import not_there_at_all", "import", ["ModuleNotFoundError", "not_there_at_all"]),
    "silent": ("x = 1", "validation", ["implements no hook"]),
    "generator": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies():\n    yield {}",
        "validation",
        ["'generator/generator_plugin'", "'poplin_strategies'", "poplin_strategies()", "generator"],
    ),
    "coroutine": (
        "from poplin import hookimpl\n@hookimpl\nasync def poplin_strategies(): return {}",
        "validation",
        ["'coroutine/coroutine_plugin'", "'poplin_strategies'", "async"],
    ),
    "unknown-hook": (
        plugin_source("strategies", "unknown-hook") + "@hookimpl\ndef poplin_select_strategi(accelerator): ...",
        "validation",
        ["'poplin_select_strategi'", "poplin_select_strategi(accelerator)", "Did you mean 'poplin_select_strategy'"],
    ),
    "unknown-argument": (
        plugin_source("strategies", "unknown-argument")
        + "@hookimpl\ndef poplin_select_strategy(accelerator, colour): ...",
        "validation",
        ["'poplin_select_strategy'", "poplin_select_strategy(accelerator, colour)", "colour"],
    ),
    "wraps": (
        plugin_source("strategies", "wraps")
        + "@hookimpl(wrapper=True)\ndef poplin_select_strategy():\n    return (yield)",
        "validation",
        ["wrapper=True", "ambient"],
    ),
    "keyword-only": (
        plugin_source("strategies", "keyword-only") + "@hookimpl\ndef poplin_select_strategy(*, accelerator): ...",
        "validation",
        ["keyword-only", "accelerator"],
    ),
    "surplus": (
        plugin_source("strategies", "surplus", "more"),
        "offers",
        ["['surplus']", "['more', 'surplus']", "poplin.strategies"],
    ),
    "missing": (plugin_source("strategies"), "offers", ["['missing']", "returned []"]),
    "elsewhere": (
        plugin_source("strategies", "elsewhere") + "@hookimpl\ndef poplin_loggers(): return {'x': print}",
        "offers",
        ["poplin.loggers", "[]", "['x']"],
    ),
    "role": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): return {'auto': print}",
        "offers",
        ["role"],
    ),
    "list": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): return ['list']",
        "offers",
        ["['list']", "dict"],
    ),
    "number": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): return {'number': 3}",
        "offers",
        ["3", "lazy"],
    ),
    "spaces": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): return {'a b': print}",
        "offers",
        ["'a b'"],
    ),
    "offers-raise": (
        "from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): raise OSError('disk gone')",
        "offers",
        ["OSError", "disk gone"],
    ),
}


def test_a_broken_plugin_gives_its_own_error_each_time_and_hurts_nobody(run, tmp_path):
    for name, (source, _, _) in BROKEN.items():
        module = name.replace("-", "_") + "_plugin"
        make_distribution(tmp_path, name, "1.0", {GROUP: {name: module}}, {f"{module}.py": source})
    make_distribution(
        tmp_path, "good", "1.0", {GROUP: {"good": "good"}}, {"good.py": plugin_source("strategies", "good")}
    )
    result = run(f"""
        broken = {list(BROKEN)!r}
        result["first"] = {{name: attempt(find, "strategies", name) for name in broken}}
        result["second"] = {{name: attempt(find, "strategies", name) for name in broken}}
        result["good"] = find("strategies", "good").name
        result["rows"] = {{row.distribution: [row.status, row.reason] for row in rows() if row.distribution in broken}}
        result["stages"] = {{one.provider.distribution: one.stage for one in registry.failures()}}
        registry.refresh()
        result["after refresh"] = {{name: attempt(find, "strategies", name)[:2] for name in broken}}
        result["loading all"] = {{row.distribution: row.status for row in rows(load=True)}}
    """)
    for name, (_, stage, words) in BROKEN.items():
        error, message, cause, _ = result["first"][name]
        assert error == "BrokenPluginError", name
        assert f"Stage: {stage}." in message, (name, message)
        for word in [f"{name} 1.0", *words]:
            assert word in message, (name, word, message)
        assert cause, name
        assert result["rows"][name][0] == "failed", name
        assert result["rows"][name][1].startswith(f"{stage}: "), (name, result["rows"][name])
        if name == "unknown-argument":  # a row has one line, and the cause must be in it
            assert "Argument(s) {'colour'} are declared in the hookimpl" in result["rows"][name][1]
        assert result["stages"][name] == stage
        assert result["loading all"][name] == "failed"
    assert result["first"] == result["second"]
    assert {name: one[:2] for name, one in result["first"].items()} == result["after refresh"]
    assert result["good"] == "good"


def test_a_hook_of_a_later_core_is_accepted_if_it_is_marked_optional(run, tmp_path):
    source = plugin_source("strategies", "acme") + "@hookimpl(optionalhook=True)\ndef poplin_of_2031(anything): ..."
    install(tmp_path, "acme", source)
    assert run("result['found'] = find('strategies', 'acme').name")["found"] == "acme"


def test_a_plugin_may_be_an_object_of_any_kind(run, tmp_path):
    make_distribution(
        tmp_path,
        "objects",
        "1.0",
        {
            GROUP: {"instance": "objects:holder.plugin", "dataclass": "objects:as_dataclass", "evil": "objects:evil"},
            "poplin.loggers": {"class": "objects:AsClass", "none": "objects:nothing", "absent": "objects:no.such"},
            "poplin.launchers": {"strange": "objects:not a name"},
        },
        {
            "objects.py": """
                from dataclasses import dataclass
                from poplin import hookimpl

                class Plain:
                    @hookimpl
                    def poplin_strategies(self): return {"instance": print}

                class holder:
                    plugin = Plain()

                @dataclass
                class AsDataclass:  # has no hash
                    name: str
                    @hookimpl
                    def poplin_strategies(self): return {self.name: print}

                as_dataclass = AsDataclass("dataclass")

                class AsClass:
                    @hookimpl
                    def poplin_loggers(self): return {"class": print}

                class Evil:
                    def __getattr__(self, name): raise RuntimeError("do not touch")
                    def __eq__(self, other): raise RuntimeError("do not compare")
                    __hash__ = None
                    @property
                    def trap(self): raise RuntimeError("do not look")
                    @hookimpl
                    def poplin_strategies(self): return {"evil": print}

                evil = Evil()
                nothing = None
            """
        },
    )
    result = run("""
        for kind, name in [("strategies", "instance"), ("strategies", "dataclass"), ("strategies", "evil"),
                           ("loggers", "class"), ("loggers", "none"), ("loggers", "absent"), ("launchers", "strange")]:
            result[name] = attempt(find, kind, name)
    """)
    assert result["instance"][0] == result["dataclass"][0] == result["evil"][0] == "nothing", result["evil"]
    assert "offer an instance" in result["class"][1]
    assert "implements no hook" in result["none"][1]
    assert (result["absent"][0], result["absent"][2]) == ("BrokenPluginError", "AttributeError")
    assert result["strange"][0] == "BrokenPluginError"


def test_a_module_whose_getattr_raises_is_loaded(run, tmp_path):
    source = plugin_source("strategies", "acme") + "def __getattr__(name): raise RuntimeError('no ' + name)"
    install(tmp_path, "acme", source)
    assert run("result['found'] = find('strategies', 'acme').name")["found"] == "acme"


@pytest.mark.parametrize("first", ["poplin", "acme_plugin", "poplin.registry"])
def test_a_plugin_that_imports_poplin_at_its_top_works_in_either_import_order(run, tmp_path, first):
    install(tmp_path, "acme", "import poplin\nfrom poplin import register\n" + plugin_source("strategies", "acme"))
    result = run("result['found'] = find('strategies', 'acme').name", before=f"import {first}")
    assert result["found"] == "acme"


def test_a_plugin_that_asks_the_registry_while_it_is_imported(run, tmp_path):
    ask = "from poplin.registry import find, names, rows\nrows(); FOUND = [find('strategies', 'single_device').name]\n"
    install(
        tmp_path, "asks", ask + "FOUND.append(find('strategies', 'other').name)\n" + plugin_source("strategies", "asks")
    )
    install(tmp_path, "other", plugin_source("strategies", "other"))
    install(tmp_path, "itself", "from poplin.registry import find\nfind('strategies', 'itself')")
    result = run("""
        result["asks"] = find("strategies", "asks").name
        import asks_plugin
        result["found"] = asks_plugin.FOUND
        result["itself"] = attempt(find, "strategies", "itself")
    """)
    assert result["asks"] == "asks"
    assert result["found"] == ["single_device", "other"]
    assert result["itself"][0] == "BrokenPluginError"
    assert "while it is being imported" in result["itself"][1]


def test_32_threads_that_look_up_one_name_first_import_once(run, tmp_path):
    for name, end in [("acme", plugin_source("strategies", "acme")), ("cracked", "raise RuntimeError('cracked')")]:
        source = f"import builtins, time\nbuiltins.imports_{name} = getattr(builtins, 'imports_{name}', 0) + 1\n"
        install(tmp_path, name, source + "time.sleep(0.3)\n" + end)
    result = run("""
        import builtins, threading
        sys.setswitchinterval(1e-5)
        barrier = threading.Barrier(32)
        outcomes = []
        def ask(number):
            barrier.wait()
            name = "acme" if number % 2 else "cracked"
            outcomes.append([name, attempt(find, "strategies", name)[0]])
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
        [thread.start() for thread in threads]
        [thread.join(30) for thread in threads]
        result["outcomes"] = sorted(outcomes)
        result["imports"] = [builtins.imports_acme, builtins.imports_cracked]
    """)
    assert result["outcomes"] == [["acme", "nothing"]] * 16 + [["cracked", "BrokenPluginError"]] * 16
    assert result["imports"] == [1, 1]


def test_two_threads_whose_plugins_need_each_other_do_not_wait_for_ever(run, tmp_path):
    for one, other in [("left", "right"), ("right", "left")]:
        source = f"import time\ntime.sleep(0.2)\nimport {other}_plugin\n" + plugin_source("strategies", one)
        install(tmp_path, one, source)
    result = run("""
        import threading
        outcomes = []
        threads = [threading.Thread(target=lambda name=name: outcomes.append(find("strategies", name).name))
                   for name in ("left", "right")]
        [thread.start() for thread in threads]
        [thread.join(20) for thread in threads]
        result["outcomes"] = sorted(outcomes)
    """)
    assert result["outcomes"] == ["left", "right"]


def test_a_forked_process_counts_as_a_new_one(run, tmp_path):
    install(tmp_path, "acme", plugin_source("strategies", "acme"))
    install(
        tmp_path,
        "once",
        "import pathlib\nif not pathlib.Path(__file__).with_name('mended').exists(): raise OSError\n"
        + plugin_source("strategies", "once"),
    )
    result = run(
        """
        import contextlib, os, threading, pathlib
        from poplin.registry.service import REGISTRY
        result["before"] = attempt(find, "strategies", "once")[0]
        find("strategies", "acme")
        held = threading.Event()
        def hold():  # a lock that is held at the moment of the fork by a thread that the child has not
            service = (REGISTRY, REGISTRY.host, REGISTRY.conversation._live, REGISTRY.owners, REGISTRY.complaints)
            with contextlib.ExitStack() as stack:
                [stack.enter_context(part._lock) for part in service]
                held.set(); threading.Event().wait(2)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            pathlib.Path(SITE, "mended").touch()
            answer = [find("strategies", "acme").name, attempt(find, "strategies", "once")[0]]
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
        os.waitpid(child, 0)
        result["child"] = json.loads(os.read(read, 1000))
    """.replace("SITE", repr(str(tmp_path)))
    )
    assert result["before"] == "BrokenPluginError"
    assert result["child"] == ["acme", "nothing"]


def test_a_binary_that_was_built_for_another_torch_is_a_stage_of_its_own(run, tmp_path):
    message = "/site/_X.so: undefined symbol: _ZN3c105ErrorC1ENS_14SourceLocationE"
    install(tmp_path, "native", f"raise ImportError({message!r})", requires=["torch==2.1.0", "poplin-core"])
    make_distribution(
        tmp_path,
        "their-runtime",
        "2.9",
        None,
        {"their_runtime.py": f"raise ImportError({message!r})"},
        requires=["torch<2.10,>=2.9"],
    )
    (tmp_path / "their_runtime-2.9.dist-info" / "top_level.txt").write_text("their_runtime\n")
    install(tmp_path, "bridge", plugin_source("strategies", "bridge", target="bridge_strategy:Strategy"))
    (tmp_path / "bridge_strategy.py").write_text("import their_runtime")
    install(tmp_path, "plain", "raise ImportError('cannot import name x')")
    result = run("""
        import importlib.metadata
        result["torch version"] = importlib.metadata.version("torch")
        result["native"] = attempt(find, "strategies", "native")
        result["bridge"] = attempt(find("strategies", "bridge").create)
        result["plain"] = attempt(find, "strategies", "plain")
        result["states"] = states()
    """)
    for name, built_for in [("native", "torch==2.1.0"), ("bridge", "torch<2.10,>=2.9")]:
        error, text, cause, _ = result[name]
        assert (error, cause) == ("BrokenPluginError", "ImportError")
        assert "Stage: built for another torch" in text
        assert built_for in text
        assert f"torch {result['torch version']} is installed" in text
        assert result["states"][f"strategies/{name}"][0] == "failed"
        assert built_for in result["states"][f"strategies/{name}"][1]
    assert "another torch" not in result["plain"][1]


def test_one_module_offered_by_two_distributions_is_registered_once(run, tmp_path):
    source = plugin_source("strategies", "acme")
    for name in ("old-name", "new-name"):
        make_distribution(tmp_path, name, "1.0", {GROUP: {"acme": "shared_plugin"}}, {"shared_plugin.py": source})
    result = run("""
        result["bare"] = attempt(find, "strategies", "acme")[0]
        result["each"] = [find("strategies", f"{one}:acme").provider.distribution for one in ("old-name", "new-name")]
    """)
    assert result["bare"] == "NameConflictError"
    assert result["each"] == ["old-name", "new-name"]


def test_deprecated_arguments_of_a_hook_warn_the_plugin_that_takes_them():
    """pluggy's warn_on_impl_args is how an argument of a hook goes out of use."""
    import pluggy

    from poplin.registry.manager import PluginHost
    from poplin.registry.markers import hookimpl, hookspec

    class Specs:
        @hookspec(warn_on_impl_args={"old": DeprecationWarning("`old` goes in 3.0: take `new`")})
        def poplin_select_strategy(self, old, new): ...

    class Plugin:
        @hookimpl
        def poplin_select_strategy(self, old): ...

    host = PluginHost(Specs)
    with pytest.warns(DeprecationWarning, match="take `new`"):
        host.register("acme/plugin", Plugin(), ambient=True)
    assert isinstance(host.manager, pluggy.PluginManager)


HALF_DONE_TORCH = """
import builtins
builtins.tries = getattr(builtins, "tries", 0) + 1
raise RuntimeError("driver missing")
"""


def test_a_torch_that_fails_is_tried_once_when_everything_is_loaded(run, tmp_path):
    needy = ("left", "right")
    for name in needy:
        install(tmp_path, name, plugin_source("strategies", name, target=f"{name}_strategy:Strategy"))
        (tmp_path / f"{name}_strategy.py").write_text("import torch")
    install(tmp_path, "atonce", "import torch\n" + plugin_source("strategies", "atonce"))
    careful = "try:\n    import torch\nexcept ImportError:\n    torch = None\nclass Strategy: ..."
    install(tmp_path, "careful", plugin_source("strategies", "careful", target="careful_strategy:Strategy"))
    (tmp_path / "careful_strategy.py").write_text(careful)
    install(tmp_path, "factory", "import torch\ndef make(): ...", group="callbacks_factory")
    (tmp_path / "torch.py").write_text(HALF_DONE_TORCH)
    result = run("""
        import builtins
        finders = list(sys.meta_path)
        result["rows"] = {f"{row.kind}/{row.name}": [row.status, row.reason] for row in rows(load=True)}
        result["tries"] = builtins.tries
        result["left alone"] = finders == sys.meta_path
        rows(load=True)
        result["tries, when asked again"] = builtins.tries
    """)
    reason = "torch can't be imported: RuntimeError: driver missing"
    for name in (
        *(f"strategies/{name}" for name in (*needy, "atonce")),
        "accelerators/cpu",
        "callbacks_factory/factory",
    ):
        assert result["rows"][name] == ["failed", reason]
    assert result["rows"]["strategies/careful"][0] == "loaded"
    assert result["rows"]["launchers/spawn"][0] == "loaded"
    assert (result["tries"], result["tries, when asked again"], result["left alone"]) == (1, 1, True)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HALF_DONE_TORCH, "RuntimeError: driver missing"),
        ("raise ImportError('libtorch_cpu.so: undefined symbol: x')", "ImportError: libtorch_cpu.so: undefined symbol"),
        ("import sys\nsys.modules['torch'] = None\nimport torch", "ModuleNotFoundError"),
    ],
    ids=["half done", "binary", "absent"],
)
def test_where_torch_fails_no_plugin_is_blamed(run, tmp_path, source, reason):
    install(tmp_path, "acme", plugin_source("strategies", "acme", target="acme_strategy:Strategy"))
    wrapped = "try:\n    import torch\nexcept Exception as error:\n    raise OSError('acme has no engine') from error"
    (tmp_path / "acme_strategy.py").write_text(wrapped)
    (tmp_path / "torch.py").write_text(source)
    error, text, _, _ = run("result['found'] = attempt(find('strategies', 'acme').create)")["found"]
    assert error == "BrokenPluginError"
    assert "'acme' of acme 1.0 (acme_plugin) needs torch, and torch can't be imported" in text
    assert reason in text
    assert "`poplin doctor`" in text
    assert "pip install" not in text
    assert "another torch" not in text


def test_an_error_out_of_a_torch_that_works_is_the_plugins_own(run, tmp_path):
    install(tmp_path, "acme", "from torch import no_such_thing")
    install(tmp_path, "other", "import torch\ntorch.fail()")
    (tmp_path / "torch.py").write_text("def fail(): raise RuntimeError('out of memory')")
    result = run("result['texts'] = [attempt(find, 'strategies', name)[1] for name in ('acme', 'other')]")
    assert all("Stage: import" in text for text in result["texts"])
