"""Selection and lifecycle hooks, through their typed callers."""

import inspect
import re
from pathlib import Path

import pytest

from poplin.registry import hookspecs
from poplin.registry.kinds import KINDS
from poplin.testing.distributions import make_distribution

SPECIFIED = sorted(name for name, value in vars(hookspecs).items() if hasattr(value, "poplin_spec"))


def ambient(site, name, source, group="poplin.ambient", **kwargs):
    make_distribution(
        site,
        name,
        "1.0",
        {group: {name: f"{name}_p"}},
        {f"{name}_p.py": "from poplin import hookimpl\n" + source},
        **kwargs,
    )


def hook(name, body, marks=""):
    arguments = list(inspect.signature(getattr(hookspecs, f"poplin_{name}")).parameters)
    return f"@hookimpl{marks}\ndef poplin_{name}({', '.join(arguments)}):\n    {body}\n"


SELECT = """
    outcome, answers = hookspecs.select_strategy(accelerator="cpu", num_devices=2, num_nodes=1, interactive=False)
    result["outcome"] = outcome
    result["answers"] = [
        [answer.provider.distribution, answer.value, type(answer.error).__name__ if answer.error else None]
        for answer in answers
    ]
"""


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_hook_is_documented_typed_and_tested(name):
    function = getattr(hookspecs, name)
    assert len(inspect.getdoc(function) or "") > 40
    documented = inspect.getdoc(function)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty
        assert re.search(rf"^\s+{parameter.name}: ", documented, re.MULTILINE), parameter.name
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    offered = {kind.hook: kind.name for kind in KINDS.values()}
    if name in offered:
        assert f'"{offered[name]}"' in tests
    else:
        caller = getattr(hookspecs, name.removeprefix("poplin_"))
        assert inspect.getdoc(caller)
        assert caller.__name__ in tests


def test_every_kind_has_its_hook():
    assert {kind.hook for kind in KINDS.values()} <= set(SPECIFIED)


def test_strategies_are_selected_in_the_order_of_distributions_whatever_was_loaded_first(run, tmp_path):
    for name, answer in [("zulu", "'z'"), ("alpha", "None"), ("mike", "'m' if num_devices == 2 else None")]:
        ambient(tmp_path, name, hook("select_strategy", f"return {answer}"))
    ambient(tmp_path, "last", hook("select_strategy", "return 'l'", "(trylast=True)"))
    ambient(tmp_path, "silent", "@hookimpl\ndef poplin_select_strategy(): return None\n")
    result = run("import zulu_p\n" + SELECT.replace("    ", "", 1).replace("\n    ", "\n"))
    assert result["outcome"] == "m"
    assert result["answers"] == [
        ["alpha", None, None],
        ["mike", "m", None],
        ["silent", None, None],
        ["zulu", "z", None],
        ["last", "l", None],
    ]


def test_a_platform_team_overrides_every_decision(run, tmp_path):
    ambient(tmp_path, "alpha", hook("select_strategy", "return 'a'"))
    ambient(tmp_path, "platform", hook("select_strategy", "return 'theirs'", "(tryfirst=True)"))
    assert run(SELECT)["outcome"] == "theirs"
    wrapper = "answers = yield\n    return 'wrapped' if answers == ['theirs', 'a'] else answers"
    ambient(tmp_path, "wraps", hook("select_strategy", wrapper, "(wrapper=True)"))
    result = run(SELECT)
    assert result["outcome"] == "wrapped"
    assert ["wraps", "wrapped", None] in result["answers"]


def test_only_plugins_that_declared_the_role_are_asked(run, tmp_path):
    for name, names in [("asked", ["auto", "asked"]), ("unasked", ["unasked"])]:
        source = f"from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): return {{'{name}': print}}\n"
        make_distribution(
            tmp_path,
            name,
            "1.0",
            {"poplin.strategies": dict.fromkeys(names, f"{name}_p")},
            {f"{name}_p.py": source + hook("select_strategy", f"return '{name}'")},
        )
    result = run("find('strategies', 'unasked')\n" + SELECT.replace("\n    ", "\n"))
    assert result["outcome"] == "asked"
    assert [answer[0] for answer in result["answers"] if answer[1]] == ["asked"]


def test_a_selection_hook_that_raises_is_found_and_the_answer_of_the_others_counts(run, tmp_path):
    ambient(tmp_path, "bad", hook("select_strategy", "raise KeyError('oops')"))
    ambient(tmp_path, "number", hook("select_strategy", "return 3"))
    ambient(tmp_path, "leaves", hook("select_strategy", "raise SystemExit(1)"))
    ambient(tmp_path, "stumbles", hook("select_strategy", "yield\n    raise OSError('late')", "(wrapper=True)"))
    ambient(tmp_path, "twice", hook("select_strategy", "yield\n    yield", "(wrapper=True)"))
    ambient(tmp_path, "never", hook("select_strategy", "if False: yield", "(wrapper=True)"))
    ambient(tmp_path, "absent", "raise ImportError('no wheel')")
    ambient(tmp_path, "good", hook("select_strategy", "return 'g'"))
    result = run(SELECT + SELECT.replace('"outcome"', '"again"') + "    result['rows'] = states('bad')\n")
    assert result["outcome"] == result["again"] == "g"
    assert ["good", "g", None] in result["answers"]
    errors = {answer[0]: answer[2] for answer in result["answers"] if answer[2]}
    assert errors == {
        "absent": "ImportError",
        "bad": "KeyError",
        "leaves": "SystemExit",
        "never": "RuntimeError",
        "number": "TypeError",
        "stumbles": "OSError",
        "twice": "RuntimeError",
    }
    assert len(result["warnings"]) == 7
    assert any("bad 1.0" in warning and "poplin_select_strategy" in warning for warning in result["warnings"])
    assert result["rows"]["ambient/bad"][0] == "failed"


def test_strict_controls_raise_what_would_be_a_warning(run, tmp_path):
    ambient(tmp_path, "bad", hook("select_strategy", "raise KeyError('oops')"))
    source = """
        result["ambient"] = attempt(registry.ambient)
        select = lambda: hookspecs.select_strategy(accelerator=0, num_devices=1, num_nodes=1, interactive=False)
        result["select"] = attempt(select)
    """
    result = run(source, env={"POPLIN_STRICT_PLUGINS": "1"})
    assert result["ambient"][0] == "nothing"
    assert result["select"][:1] + result["select"][2:3] == ["BrokenPluginError", "KeyError"]
    ambient(tmp_path, "absent", "raise ImportError('no wheel')")
    result = run(source, env={"POPLIN_STRICT_PLUGINS": "1"})
    assert result["ambient"][:1] + result["ambient"][2:3] == ["BrokenPluginError", "ImportError"]


def test_ambient_plugins_that_fail_warn_once_and_the_others_are_loaded_once(run, tmp_path):
    ambient(tmp_path, "bad", "import sys; sys.exit('gone')")
    ambient(tmp_path, "later", "", requires=["poplin-core>=7"])
    ambient(
        tmp_path,
        "good",
        "import builtins\nbuiltins.times = getattr(builtins, 'times', 0) + 1\n" + hook("fabric_created", "pass"),
    )
    result = run("""
        import builtins
        for _ in range(3):
            registry.ambient()
        result["times"] = builtins.times
        result["later"] = "later_p" in sys.modules
    """)
    assert result["times"] == 1
    assert result["later"] is False
    assert len(result["warnings"]) == 2
    assert ">=7" in result["warnings"][0]
    assert "bad 1.0" in result["warnings"][1]
    assert "gone" in result["warnings"][1]


def test_redirections_ask_the_accelerators_plugin_then_the_strategys_then_ambient_ones(run, tmp_path):
    for kind, name in [("accelerators", "zz-device"), ("strategies", "mm-strategy"), ("strategies", "bystander")]:
        source = f"from poplin import hookimpl\n@hookimpl\ndef poplin_{kind}(): return {{'{name}': print}}\n"
        module = name.replace("-", "_")
        make_distribution(
            tmp_path,
            name,
            "1.0",
            {f"poplin.{kind}": {name: module}},
            {
                f"{module}.py": source
                + hook("redirect_strategy", f"ASKED.append('{name}')").replace("@hookimpl", "ASKED = []\n@hookimpl", 1)
            },
        )
    ambient(tmp_path, "aa", hook("redirect_strategy", "return 'other' if name == 'mm-strategy' else None"))
    result = run("""
        providers = [find("accelerators", "zz-device").provider, find("strategies", "mm-strategy").provider, None]
        find("strategies", "bystander")
        target, answers = hookspecs.redirect_strategy("mm-strategy", "accelerator", providers)
        result["target"] = target
        result["asked"] = [answer.provider.distribution for answer in answers]
        result["none"] = hookspecs.redirect_strategy("x", "accelerator", [None])[0]
    """)
    assert result["target"] == "other"
    assert result["asked"] == ["zz-device", "mm-strategy", "aa"]
    assert result["none"] is None


def test_a_selection_is_vetoed_by_a_selection_error_and_by_nothing_else(run, tmp_path):
    ambient(
        tmp_path,
        "guard",
        hook("check_selection", "if selection == 'bad': raise SelectionError('use a smaller one')").replace(
            "@hookimpl", "from poplin.errors import SelectionError\n@hookimpl"
        ),
    )
    ambient(tmp_path, "stumbles", hook("check_selection", "raise OSError('no config')"))
    ambient(tmp_path, "answers", hook("check_selection", "return False"))
    result = run("""
        result["asked"] = sorted(answer.provider.distribution for answer in hookspecs.check_selection("good"))
        result["veto"] = attempt(hookspecs.check_selection, "bad")
    """)
    assert result["asked"] == ["answers", "guard", "stumbles"]
    assert result["veto"][:2] == ["SelectionError", "use a smaller one"]
    assert len(result["warnings"]) == 2
    wrapper = "try:\n        return (yield)\n    except Exception:\n        return None"
    ambient(tmp_path, "lenient", hook("check_selection", wrapper, "(wrapper=True)"))
    assert run("result['veto'] = attempt(hookspecs.check_selection, 'bad')")["veto"][0] == "nothing"


def test_lifecycle_hooks_are_told_one_by_one_and_late_plugins_are_told_of_live_fabrics(run, tmp_path):
    record = "import builtins\nEVENTS = builtins.__dict__.setdefault('EVENTS', [])\n"
    events = "".join(
        hook(name, f"EVENTS.append(['{{who}}', '{name}', fabric.number])")
        for name in ("fabric_created", "processes_launched", "fabric_closed")
    )
    ambient(tmp_path, "early", record + events.replace("{who}", "early"))
    ambient(tmp_path, "fails", hook("fabric_created", "raise OSError('full')"))
    make_distribution(
        tmp_path,
        "late",
        "1.0",
        {"poplin.loggers": {"late": "late_p"}},
        {
            "late_p.py": "from poplin import hookimpl\n"
            + record
            + events.replace("{who}", "late")
            + "@hookimpl\ndef poplin_loggers(): return {'late': print}\n"
        },
    )
    result = run("""
        import builtins, gc, weakref
        class Fabric:
            def __init__(self, number): self.number = number
            __hash__ = None  # kept by identity
        registry.ambient()
        one, two, three = (Fabric(number) for number in (1, 2, 3))
        ref = weakref.ref(three)
        for fabric in (one, two, three):
            hookspecs.fabric_created(fabric)
        hookspecs.processes_launched(two)
        hookspecs.fabric_closed(one)
        del three, fabric
        gc.collect()
        result["kept"] = ref() is not None
        find("loggers", "late")
        hookspecs.fabric_closed(two)
        result["events"] = builtins.EVENTS
        registry.refresh(); find("loggers", "late")
        result["after the end"] = len(builtins.EVENTS)
    """)
    early = [event[1:] for event in result["events"] if event[0] == "early"]
    late = [event[1:] for event in result["events"] if event[0] == "late"]
    assert early == [
        ["fabric_created", 1],
        ["fabric_created", 2],
        ["fabric_created", 3],
        ["processes_launched", 2],
        ["fabric_closed", 1],
        ["fabric_closed", 2],
    ]
    assert late == [["fabric_created", 2], ["processes_launched", 2], ["fabric_closed", 2]]
    assert result["kept"] is False
    assert result["after the end"] == len(result["events"])
    assert len(result["warnings"]) == 1
    assert "fails 1.0" in result["warnings"][0]


def test_a_script_s_own_object_takes_part_in_selection(run, tmp_path):
    result = run("""
        class Mine:
            @hookimpl(tryfirst=True)
            def poplin_select_strategy(self, accelerator): return "mine"
            @hookimpl
            def poplin_fabric_created(self, fabric): result["told"] = fabric.name
        class Fabric: name = "f"
        fabric = Fabric()
        hookspecs.fabric_created(fabric)
        mine = Mine()
        register(mine)
        register(mine)
        result["outcome"] = hookspecs.select_strategy(accelerator=0, num_devices=1, num_nodes=1, interactive=False)[0]
        result["row"] = [[row.kind, row.distribution, row.target] for row in rows() if row.distribution == "runtime"]
        registry.unregister(mine)
        result["after"] = hookspecs.select_strategy(accelerator=0, num_devices=1, num_nodes=1, interactive=False)[0]
        result["twice"] = attempt(registry.unregister, mine)
    """)
    assert result["told"] == "f"
    assert result["outcome"] == "mine"
    assert result["row"] == [["ambient", "runtime", "__main__:Mine"]]
    assert result["after"] != "mine"
    assert result["twice"][0] == "ArgumentValueError"
