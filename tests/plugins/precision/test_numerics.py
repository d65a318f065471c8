"""Each precision trains as the same loop written in plain torch, to the bit, on the CPU."""

import copy
import pickle

import pytest
import torch
from torch import nn

from poplin import Fabric

STEPS = 6


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)) for _ in range(STEPS)
    ]


def train(precision, clip=None, optimizer_class=torch.optim.AdamW, spoil=None, **options):
    with Fabric(accelerator="cpu", devices=1, precision=precision) as fabric:
        model = make_model()
        model, optimizer = fabric.setup(model, optimizer_class(model.parameters(), lr=0.01, **options))
        for step, (inputs, targets) in enumerate(batches()):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            fabric.backward(loss)
            if step == spoil:
                model[0].weight.grad[0, 0] = float("inf")
            if clip:
                fabric.clip_gradients(model, optimizer, max_norm=clip)
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict(), fabric.precision.state_dict()


def train_raw_mixed(dtype, scale, clip=None, optimizer_class=torch.optim.AdamW, spoil=None, **options):
    model = make_model()
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    scaler = torch.amp.GradScaler("cpu", enabled=scale)
    for step, (inputs, targets) in enumerate(batches()):
        with torch.autocast("cpu", dtype=dtype):
            output = model(inputs)
        loss = nn.functional.cross_entropy(output.float(), targets)
        scaler.scale(loss).backward()
        if step == spoil:
            model[0].weight.grad[0, 0] = float("inf")
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model.state_dict(), scaler.state_dict()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize(("name", "dtype"), [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16)])
def test_mixed_equals_the_raw_loop(name, dtype, clip):
    state, scale = train(name, clip)
    raw, raw_scale = train_raw_mixed(dtype, name == "16-mixed", clip)
    assert_equal(state, raw)
    assert scale == raw_scale


def test_a_gradient_that_is_not_finite_skips_the_step_as_torch_does():
    state, scale = train("16-mixed", clip=1.0, spoil=2)
    raw, raw_scale = train_raw_mixed(torch.float16, True, clip=1.0, spoil=2)
    assert_equal(state, raw)
    assert scale == raw_scale
    assert scale["scale"] < torch.amp.GradScaler("cpu").get_scale()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_fused_optimizers_are_unscaled_once(clip):
    state, scale = train("16-mixed", clip, optimizer_class=torch.optim.Adam, fused=True)
    raw, raw_scale = train_raw_mixed(torch.float16, True, clip, optimizer_class=torch.optim.Adam, fused=True)
    assert_equal(state, raw)
    assert scale == raw_scale


@pytest.mark.parametrize(
    ("name", "dtype", "loss_dtype"),
    [
        ("16-true", torch.float16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.float32),
        ("64-true", torch.float64, torch.float64),
    ],
)
def test_true_precisions_equal_the_raw_loop(name, dtype, loss_dtype):
    state, _ = train(name, optimizer_class=torch.optim.SGD)
    model = make_model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in batches():
        nn.functional.cross_entropy(model(inputs.to(dtype)).to(loss_dtype), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_equal(state, model.state_dict())


class Probe(nn.Module):
    """Reports the dtypes that reach a forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, data, mask=None):
        self.seen = {key: value.dtype for key, value in data.items()} | {"made": torch.zeros(1).dtype}
        self.seen["mask"] = None if mask is None else mask.dtype
        return {"out": self.linear(data["float"]), "index": data["int"]}


@pytest.mark.parametrize(
    ("name", "inside", "parameters", "outside"),
    [
        ("16-mixed", torch.float32, torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.float32, torch.float32),
        ("16-true", torch.float16, torch.float16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.float32),
        ("64-true", torch.float64, torch.float64, torch.float64),
    ],
)
def test_floats_are_cast_and_nothing_else(name, inside, parameters, outside):
    with Fabric(accelerator="cpu", devices=1, precision=name) as fabric:
        model = fabric.setup(Probe())
        data = {"float": torch.ones(3, 2), "int": torch.ones(3, dtype=torch.int32), "bool": torch.ones(3) > 0}
        out = model(data, mask=torch.ones(1, dtype=torch.float64))
        seen = model.seen
        assert seen["float"] is inside
        assert seen["mask"] is inside
        assert seen["int"] is torch.int32
        assert seen["bool"] is torch.bool
        assert seen["made"] is (torch.float32 if "mixed" in name else parameters)
        assert model.linear.weight.dtype is parameters
        assert model.count.dtype is torch.int64
        assert out["out"].dtype is outside
        assert out["index"].dtype is torch.int32
        assert torch.get_default_dtype() is torch.float32
        with fabric.init_tensor():
            assert torch.zeros(1).dtype is parameters
        with fabric.init_module():
            assert nn.Linear(1, 1).weight.dtype is parameters
        assert data["float"].dtype is torch.float32


def test_what_is_marked_keeps_its_dtype_and_its_value():
    from poplin_precision import HalfPrecision

    precision = HalfPrecision("bf16-true", keep_fp32=[nn.BatchNorm1d, "linear.bias", "tab*"])
    module = Probe()
    module.linear.bias.data.fill_(1 / 3)
    bias, table = module.linear.bias, module.table
    with Fabric(accelerator="cpu", devices=1, plugins=precision) as fabric:
        model = fabric.setup(module)
        assert model.linear.weight.dtype is torch.bfloat16
        assert model.linear.bias is bias
        assert bias.dtype is torch.float32
        assert torch.equal(bias, torch.full((2,), 1 / 3))
        assert model.table is table
        assert all(
            tensor.is_floating_point() is False or tensor.dtype is torch.float32 for tensor in model.norm.buffers()
        )
        assert model.norm.weight.dtype is torch.float32


def test_two_optimizers_share_one_scale_updated_once_an_iteration():
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        one, two = make_model(), make_model()
        one, first = fabric.setup(one, torch.optim.SGD(one.parameters(), lr=0.1))
        two, second = fabric.setup(two, torch.optim.SGD(two.parameters(), lr=0.1))
        inputs, targets = batches()[0]
        loss = nn.functional.cross_entropy(one(inputs), targets) + nn.functional.cross_entropy(two(inputs), targets)
        fabric.backward(loss)
        one[0].weight.grad[0, 0] = float("inf")  # the first skips; the second must still be unscaled by the old scale
        before = two[0].weight.detach().clone()
        first.step()
        second.step()
        assert fabric.strategy.step_was_skipped(first.optimizer)
        assert not fabric.strategy.step_was_skipped(second.optimizer)
        change = (two[0].weight - before).abs().max()
        assert 0 < change < 1
        assert fabric.precision.state_dict()["scale"] == torch.amp.GradScaler("cpu").get_scale() / 2


def test_a_skipped_step_does_not_advance_the_scheduler():
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
        rates = []
        for step, (inputs, targets) in enumerate(batches()[:3]):
            fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
            if step == 1:
                model[0].weight.grad[0, 0] = float("nan")
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
        assert rates == [0.5, 0.5, 0.25]


def test_the_closure_goes_through_the_scaler_and_returns_the_loss():
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        inputs, targets = batches()[0]

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            fabric.backward(loss)
            return loss

        before = model[0].weight.detach().clone()
        loss = optimizer.step(closure)
        assert loss.item() > 0
        assert 0 < (model[0].weight - before).abs().max() < 1


def test_what_scaling_cannot_do_is_an_error():
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.LBFGS(model.parameters()))
        with pytest.raises(RuntimeError, match="LBFGS"):
            optimizer.step(lambda: None)
        with pytest.raises(RuntimeError, match=r"fabric\.backward"):
            model(batches()[0][0]).sum().backward()


def test_the_scale_is_saved_and_restored(tmp_path):
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        inputs, targets = batches()[0]
        fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
        model[0].weight.grad[0, 0] = float("inf")
        optimizer.step()
        fabric.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
        scale = fabric.precision.state_dict()
    with Fabric(accelerator="cpu", devices=1, precision="16-mixed") as fabric:
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        fabric.load(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
        assert fabric.precision.state_dict() == scale


def test_the_objects_pickle_and_copy_before_the_run():
    from poplin_precision import DoublePrecision, HalfPrecision, MixedPrecision

    for precision in (MixedPrecision(), MixedPrecision("bf16-mixed"), HalfPrecision("bf16-true"), DoublePrecision()):
        assert pickle.loads(pickle.dumps(precision)).precision == precision.precision
        assert copy.deepcopy(precision).precision == precision.precision


@pytest.mark.parametrize(
    ("written", "canonical", "warns"),
    [(16, "16-mixed", True), ("16", "16-mixed", True), ("bf16", "bf16-mixed", True), (64, "64-true", False),
     ("64", "64-true", False), (32, "32-true", False), ("32", "32-true", False)],
)  # fmt: skip
def test_the_older_spellings(written, canonical, warns, recwarn):
    with Fabric(accelerator="cpu", devices=1, precision=written) as fabric:
        assert fabric.precision.precision == canonical
    messages = [str(warning.message) for warning in recwarn if canonical in str(warning.message)]
    assert bool(messages) is warns


def test_bad_arguments():
    from poplin_precision import HalfPrecision, MixedPrecision

    with pytest.raises(ValueError, match="16-mixed"):
        MixedPrecision("16-true")
    with pytest.raises(ValueError, match="scaler"):
        MixedPrecision("bf16-mixed", scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="bf16-true"):
        HalfPrecision("64-true")
    with pytest.raises(TypeError, match="keep_fp32"):
        HalfPrecision("16-true", keep_fp32=[3])
