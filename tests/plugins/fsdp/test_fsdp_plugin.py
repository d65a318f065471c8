"""What the package offers, how it is selected, and which arguments are refused with what to write instead."""

from __future__ import annotations

import functools
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor.parallel import ColwiseParallel

from poplin import Fabric
from poplin.errors import PoplinError, SelectionError
from poplin.plugins import MixedPrecision as AutocastPrecision
from poplin.precision import Precision
from poplin.strategies import FSDPStrategy, ModelParallelStrategy, TensorParallelStrategy
from poplin_fsdp.grouping import groups_of
from poplin_fsdp.policies import mixed_precision_policy, offload_policy
from poplin_fsdp.precision import FSDPPrecision, make_precision
from poplin_fsdp.selecting import as_policy, selected


@pytest.mark.parametrize(
    ("name", "kind", "has"),
    [
        ("fsdp", FSDPStrategy, {"cpu_offload": None, "hybrid": False}),
        ("fsdp_cpu_offload", FSDPStrategy, {"cpu_offload": True}),
        ("hsdp", FSDPStrategy, {"hybrid": True}),
        ("model_parallel", ModelParallelStrategy, {"data_parallel_size": "auto"}),
        ("tensor_parallel", TensorParallelStrategy, {"data_parallel_size": 1}),
    ],
)
def test_names_lead_to_strategies(name, kind, has):
    fabric = Fabric(accelerator="cpu", devices=2, strategy=name)
    assert type(fabric.strategy) is kind
    assert {key: getattr(fabric.strategy, key) for key in has} == has
    assert type(fabric.strategy.checkpoint_io).__name__ == "ShardedCheckpointIO"
    assert "FSDPPrecision" in type(fabric.precision).__name__
    assert not fabric.launched
    pickle.loads(pickle.dumps(fabric.strategy))


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-true"])
def test_a_fabric_travels_to_workers(precision):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="fsdp", precision=precision)
    there = pickle.loads(pickle.dumps(fabric))
    assert there.precision.scales_loss is (precision == "16-mixed")
    assert there.precision.state_dict() == fabric.precision.state_dict()


def test_one_file_where_it_is_asked_for():
    for strategy in (FSDPStrategy(state_dict_type="full"), ModelParallelStrategy(save_distributed_checkpoint=False)):
        fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
        assert type(fabric.strategy.checkpoint_io).__name__ == "TorchCheckpointIO"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sharding_strategy": "NO_SHARD"}, ["strategy='ddp'"]),
        ({"sharding_strategy": "HALF"}, ["'HALF'", "'FULL_SHARD'"]),
        ({"state_dict_type": "half"}, ["'sharded'", "'full'"]),
        ({"use_orig_params": False}, ["FSDP1"]),
        ({"param_init_fn": print}, ["fabric.init_module()"]),
        ({"device_id": 0}, ["device"]),
        ({"process_group": object()}, ["device_mesh"]),
        ({"ignored_modules": [1]}, ["ignored_params"]),
        ({"auto_wrap_polcy": None}, ["auto_wrap_polcy", "reshard_after_forward"]),
        ({"auto_wrap_policy": 3}, ["auto_wrap_policy"]),
        ({"auto_wrap_policy": [3]}, ["module classes"]),
        ({"activation_checkpointing_policy": "x"}, ["activation_checkpointing_policy"]),
        ({"activation_checkpointing": nn.Linear, "activation_checkpointing_policy": nn.Linear}, ["one of them"]),
        ({"device_mesh": 3}, ["device_mesh"]),
        ({"device_mesh": (0, 2)}, ["above 0"]),
        ({"cpu_offload": "yes"}, ["CPUOffloadPolicy"]),
        ({"mixed_precision": "bf16"}, ["MixedPrecisionPolicy"]),
        ({"mixed_precision": MixedPrecision(buffer_dtype=torch.float16)}, ["buffers"]),
    ],
)
def test_arguments_without_a_counterpart_are_refused(arguments, words):
    with pytest.raises(PoplinError) as caught:
        FSDPStrategy(**arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_arguments_of_fsdp1_that_ask_for_what_is_done_anyway():
    strategy = FSDPStrategy(
        use_orig_params=True,
        sync_module_states=True,
        limit_all_gathers=True,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )
    assert strategy.fsdp_kwargs == {"reshard_after_forward": False}
    assert FSDPStrategy(reshard_after_forward=True).fsdp_kwargs == {"reshard_after_forward": True}


def test_the_old_name_of_checkpointing_still_works():
    with pytest.warns(DeprecationWarning, match="activation_checkpointing_policy"):
        assert FSDPStrategy(activation_checkpointing=nn.Linear).activation_checkpointing_policy == (nn.Linear,)


def test_policies_of_offloading_and_mixed_precision():
    given = MixedPrecisionPolicy(torch.bfloat16)
    assert mixed_precision_policy(given) is given
    old = mixed_precision_policy(MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    assert (old.param_dtype, old.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert isinstance(offload_policy(True, pin_memory=False), CPUOffloadPolicy)
    assert not isinstance(offload_policy(None, pin_memory=False), CPUOffloadPolicy)
    assert FSDPStrategy(mixed_precision=given)._policies()[1].output_dtype is torch.float32
    bf16 = make_precision("bf16-mixed")
    assert (bf16.policy.param_dtype, bf16.policy.reduce_dtype, bf16.policy.output_dtype) == (
        torch.bfloat16,
        torch.float32,
        None,
    )
    assert bf16.root_policy.output_dtype is torch.float32
    assert make_precision("nf4") is None
    for arguments in (("8-true",), ("32-true", torch.amp.GradScaler("cpu"))):
        with pytest.raises(ValueError):
            FSDPPrecision(*arguments)


class Int4(Precision):
    """Somebody's precision of a name that sharded modules don't have."""

    precision = "int4"
    converts_module = True

    def __init__(self, shardable=False):
        self.shardable = shardable


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (FSDPStrategy(device_mesh=(2, 2)), {}, ["4 processes", "there are 2"]),
        (ModelParallelStrategy(print, data_parallel_size=3), {}, ["data_parallel_size"]),
        (ModelParallelStrategy(print, 2, 2), {}, ["4 processes"]),
        (FSDPStrategy(), {"plugins": AutocastPrecision("16-mixed")}, ["precision='16-mixed'", "FSDPPrecision"]),
        (FSDPStrategy(), {"plugins": Int4()}, ["Int4", "Pass '32-true', '16-mixed', 'bf16-mixed', '16-true'"]),
        (ModelParallelStrategy(print), {"plugins": Int4(shardable=True)}, ["Int4", "Pass '32-true'"]),
    ],
)
def test_runs_that_cannot_be_are_refused(strategy, options, words):
    with pytest.raises(SelectionError) as caught:
        Fabric(accelerator="cpu", devices=2, strategy=strategy, **options)
    assert [word for word in words if word not in str(caught.value)] == []


def test_fsdp_takes_what_is_shardable_as_it_is():
    precision = Int4(shardable=True)
    assert Fabric(accelerator="cpu", devices=2, strategy="fsdp", plugins=precision).precision is precision


@pytest.mark.parametrize(
    "arguments",
    [
        {"parallelize_fn": 3},
        {"parallelize_fn": print, "plan": {}},
        {"plan": [1]},
        {"plan": {"a": 1}},
        {"parallelize_fn": print, "data_parallel_size": 0},
        {"parallelize_fn": print, "tensor_parallel_size": "some"},
    ],
)
def test_what_says_how_to_parallelise_is_checked(arguments):
    with pytest.raises(PoplinError):
        ModelParallelStrategy(**arguments)


def test_sizes_of_the_mesh():
    def sizes(world, nodes, **given):
        return ModelParallelStrategy(print, **given)._sizes(world, nodes)

    assert sizes(8, 2) == (2, 4)
    assert sizes(8, 1) == (1, 8)
    assert sizes(8, 1, data_parallel_size=4) == (4, 2)
    assert sizes(8, 1, tensor_parallel_size=2) == (4, 2)
    assert TensorParallelStrategy({"a": ColwiseParallel()})._sizes(8, 2) == (1, 8)
    assert TensorParallelStrategy({"a": ColwiseParallel()}, tensor_parallel_size=4)._sizes(8, 2) == (2, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    "policy",
    [
        Block,
        {Block},
        [Block],
        lambda module: isinstance(module, Block),
        ModuleWrapPolicy({Block}),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    ],
)
def test_every_form_of_policy_selects_the_blocks(policy):
    model = nn.Sequential(Block(), nn.Linear(4, 4), Block())
    assert selected(model, as_policy(policy, "auto_wrap_policy")) == [model[0], model[2]]
    assert selected(model, None) == []


def test_a_policy_by_size():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(40, 40))

    def policy(module, recurse, nonwrapped_numel):
        return size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=100)

    assert selected(model, as_policy(policy, "auto_wrap_policy")) == [model[1]]


def test_groups_keep_tied_parameters_together():
    model = nn.Sequential(Block(), Block(), Block(), nn.Linear(4, 4))
    assert groups_of(model, [model[0], model[1]]) == [[model[0]], [model[1]], [model]]
    model[1].inner.weight = model[0].inner.weight
    assert groups_of(model, [model[0], model[1], model[2]]) == [[model[0], model[1]], [model[2]], [model]]
    model[3].weight = model[2].inner.weight  # one of the two is the root's own
    assert groups_of(model, [model[0], model[1], model[2]]) == [[model[0], model[1]], [model]]
    nested = nn.Sequential(nn.Sequential(Block(), nn.Linear(4, 4)))
    nested[0][1].weight = nested[0][0].inner.weight  # the inner unit gives way to the one around it
    assert groups_of(nested, [nested[0], nested[0][0]]) == [[nested[0]], [nested]]
    compiled = nn.Sequential(torch.compile(Block(), backend="eager"))
    assert groups_of(compiled, [compiled[0]._orig_mod]) == [[compiled[0]], [compiled]]
