"""The config: read from everywhere, merged with the arguments, and refused where it can't be meant."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poplin.errors import ContradictionError, SelectionError
from poplin_deepspeed.config import build, offloads_to
from poplin_deepspeed.errors import DeepSpeedConfigError
from poplin_deepspeed.settings import PLACES, get, put, without_auto

ZERO = "zero_optimization"


def test_defaults_where_nothing_is_said():
    config = build(None, {}, {})
    assert config[ZERO]["stage"] == 2
    assert config["gradient_clipping"] == 0.0  # DeepSpeed's own default is 1.0
    assert config["zero_allow_untested_optimizer"] is True
    assert config["zero_force_ds_cpu_optimizer"] is False
    assert "fp16" not in config
    assert "offload_optimizer" not in config[ZERO]


def test_a_dictionary_a_file_and_the_environment_give_the_same(tmp_path):
    config = {ZERO: {"stage": 3, "stage3_param_persistence_threshold": 7}, "steps_per_print": 5}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config))
    expected = build(config, {}, {})
    assert expected[ZERO]["stage3_param_persistence_threshold"] == 7
    assert build(file, {}, {}) == expected
    assert build(str(file), {}, {}) == expected
    for variable in ("POPLIN_DEEPSPEED_CONFIG", "PL_DEEPSPEED_CONFIG_PATH"):
        assert build(None, {}, {variable: str(file)}) == expected
        assert build(None, {}, {variable: json.dumps(config)}) == expected
        assert build(config, {}, {variable: str(file)}) == expected
    assert config == {ZERO: {"stage": 3, "stage3_param_persistence_threshold": 7}, "steps_per_print": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[1]", "can't be read"), ('{"fp16": {}, "fp16": {}}', "fp16 stands there twice")],
)
def test_what_is_no_config(text, message):
    with pytest.raises(DeepSpeedConfigError, match=message):
        build(text, {}, {})


def test_files_that_are_none(tmp_path):
    with pytest.raises(DeepSpeedConfigError, match="No such file"):
        build(tmp_path / "nothing.json", {}, {})
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DeepSpeedConfigError, match="holds a list"):
        build(tmp_path / "list.json", {}, {})
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeepSpeedConfigError, match="no text"):
        build(tmp_path / "binary.json", {}, {})
    with pytest.raises(DeepSpeedConfigError, match="got a int"):
        build(3, {}, {})


def test_two_sources_that_differ_are_named():
    with pytest.raises(
        ContradictionError, match=r"stage=2\) contradicts the config, which says zero_optimization.stage=3"
    ):
        build({ZERO: {"stage": 3}}, {"stage": 2}, {})
    with pytest.raises(
        ContradictionError, match="environment variable POPLIN_DEEPSPEED_CONFIG.*zero_optimization.stage"
    ):
        build({ZERO: {"stage": 3}}, {}, {"POPLIN_DEEPSPEED_CONFIG": '{"zero_optimization": {"stage": 2}}'})
    with pytest.raises(ContradictionError, match="the config of PL_DEEPSPEED_CONFIG_PATH"):
        build(None, {"stage": 1}, {"PL_DEEPSPEED_CONFIG_PATH": '{"zero_optimization": {"stage": 2}}'})
    with pytest.raises(ContradictionError, match="offload_optimizer=False"):
        build({ZERO: {"offload_optimizer": {"device": "cpu"}}}, {"offload_optimizer": False}, {})
    arguments = {"stage": 3, "offload_parameters": True, "offload_params_device": "nvme"}
    with pytest.raises(ContradictionError, match="offload_params_device='nvme'"):
        build({ZERO: {"offload_param": {"device": "cpu"}}}, arguments, {})


def test_offload_from_arguments_and_config_together():
    config = build({ZERO: {"offload_optimizer": {"device": "cpu", "fast_init": True}}}, {"offload_optimizer": True}, {})
    assert config[ZERO]["offload_optimizer"] == {"device": "cpu", "fast_init": True}
    arguments = {"stage": 3, "offload_optimizer": True, "offload_optimizer_device": "nvme", "nvme_path": "/fast"}
    config = build(None, arguments | {"pin_memory": True, "thread_count": 4, "optimizer_buffer_count": 5}, {})
    section = {"device": "nvme", "nvme_path": "/fast", "pin_memory": True, "buffer_count": 5}
    assert config[ZERO]["offload_optimizer"] == section
    assert config["aio"] == {"thread_count": 4}
    assert offloads_to(config, "nvme")
    assert not offloads_to(config, "cpu")
    assert "offload_param" not in build(None, {"params_buffer_size": 5}, {})[ZERO]


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({ZERO: {"stage": 0}}, {}, "strategy='ddp'"),
        ({ZERO: False}, {}, "is a section with a stage"),
        ({ZERO: {"stage": 4}}, {}, "not 4"),
        ({ZERO: {"stage": "two"}}, {}, "not 'two'"),
        ({}, {"stage": 1, "overlap_comm": True}, "overlap_comm"),
        ({}, {"stage": 2, "offload_parameters": True}, "only stage 3 can"),
        ({}, {"stage": 2, "offload_optimizer": True, "offload_optimizer_device": "nvme"}, "only stage 3 can"),
        ({"gradient_accumulation_steps": 4}, {}, "Your loop accumulates"),
        ({"optimizer": {"type": "Adam"}}, {}, "section 'optimizer'"),
        ({"scheduler": {"type": "WarmupLR"}}, {}, "section 'scheduler'"),
        ({"zero_optimisation": {"stage": 3}}, {}, "Did you mean 'zero_optimization'"),
        ({"gradient_cliping": 1.0}, {}, "Did you mean 'gradient_clipping'"),
        ({"tensor_parallel": {"autotp_size": 2}}, {}, "tensor or sequence parallelism"),
        ({"managed_gradient_accumulation": False}, {}, "managed_gradient_accumulation"),
        ({ZERO: {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, {}, "zenflow"),
        ({ZERO: {"compute_grad_norm": False}, "gradient_clipping": 1.0}, {}, "compute_grad_norm"),
    ],
)
def test_impossible_configs(config, arguments, message):
    with pytest.raises(DeepSpeedConfigError, match=message) as caught:
        build(config, arguments, {})
    assert isinstance(caught.value, SelectionError)


def test_auto_is_left_out_and_unknown_keys_of_other_tools_stay():
    config = {
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
        "x-mine": 1,
    }
    merged = build(config, {}, {})
    assert "train_batch_size" not in merged
    assert merged["bf16"] == {}
    assert merged["x-mine"] == 1
    assert without_auto({"a": {"b": "auto", "c": 1}, "d": "auto"}) == {"a": {"c": 1}}


names = st.sampled_from(sorted(name for name, place in PLACES.items() if len(place) == 2 and name != "stage"))


@given(st.dictionaries(names, st.integers(1, 9), max_size=6), st.dictionaries(names, st.integers(1, 9), max_size=6))
def test_arguments_and_config_agree_or_are_refused(arguments, others):
    config = {}
    for name, value in others.items():
        put(config, PLACES[name], value)
    differ = any(others.get(name, value) != value for name, value in arguments.items())
    if differ:
        with pytest.raises(ContradictionError):
            build(config, arguments, {})
        return
    merged = build(config, arguments, {})
    for name, value in {**arguments, **others}.items():
        assert get(merged, PLACES[name]) == value
