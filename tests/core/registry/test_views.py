"""STRATEGY_REGISTRY and ACCELERATOR_REGISTRY, as users of Lightning know them."""


def test_the_views_show_the_one_registry(run):
    result = run("""
        from poplin.accelerators import ACCELERATOR_REGISTRY
        from poplin.strategies import STRATEGY_REGISTRY, SingleDeviceStrategy

        class Mine(SingleDeviceStrategy):
            def __init__(self, overlap=False):
                super().__init__()
                self.overlap = overlap

        STRATEGY_REGISTRY.register("mine", Mine, description="Mine.", overlap=True)

        @STRATEGY_REGISTRY.register("decorated", description="Another.")
        class Decorated(Mine): ...

        value = STRATEGY_REGISTRY.get("mine")
        result["mine"] = [type(value).__name__, value.overlap]
        result["in"] = ["mine" in STRATEGY_REGISTRY, "MINE" in STRATEGY_REGISTRY, "other" in STRATEGY_REGISTRY,
                        3 in STRATEGY_REGISTRY, "" in STRATEGY_REGISTRY, "cpu" in ACCELERATOR_REGISTRY]
        result["listed"] = STRATEGY_REGISTRY.available_strategies()
        result["real"] = find("strategies", "decorated").name
        STRATEGY_REGISTRY.remove("mine")
        result["removed"] = attempt(STRATEGY_REGISTRY.get, "mine")[0]
        result["default"] = STRATEGY_REGISTRY.get("mine", None)
        result["taken"] = attempt(STRATEGY_REGISTRY.register, "decorated", Mine)[0]
        STRATEGY_REGISTRY.register("decorated", Mine, override=True)
        result["override"] = type(STRATEGY_REGISTRY.get("decorated")).__name__
        result["accelerators"] = ACCELERATOR_REGISTRY.available_accelerators()
        result["repr"] = repr(ACCELERATOR_REGISTRY)
        result["len"] = len(ACCELERATOR_REGISTRY)
        try:
            STRATEGY_REGISTRY.get("absent")
        except KeyError as error:
            result["key error"] = str(error)
    """)
    assert result["mine"] == ["Mine", True]
    assert result["in"] == [True, True, False, False, False, True]
    assert result["listed"] == ["decorated", "mine", "single_device"]
    assert result["real"] == "decorated"
    assert result["removed"] == "UnknownNameError"
    assert result["default"] is None
    assert result["taken"] == "ArgumentValueError"
    assert result["override"] == "Mine"
    assert result["accelerators"] == ["cpu"]
    assert result["len"] == 1
    assert "cpu" in result["repr"]
    assert result["key error"].startswith("There is no strategy 'absent'")
