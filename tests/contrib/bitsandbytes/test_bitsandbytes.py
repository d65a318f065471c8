"""What becomes of a model, with the real library on the CPU: values, memory, training, state dicts, refusals."""

import copy

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.errors import ArgumentValueError, UsageError

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]

MODES = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "int8-training")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 64)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)]
        )
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 10)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.lm_head(self.norm(hidden))


def make():
    torch.manual_seed(0)
    return Net()


TOKENS = torch.arange(10).repeat(2, 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_set_up_model_is_quantised_computes_nearly_the_same_and_comes_back_from_a_checkpoint(mode, tmp_path):
    import bitsandbytes as bnb

    expected = make()(TOKENS)
    with Fabric(accelerator="cpu", devices=1, precision=mode) as fabric:
        model = fabric.setup(make())
        kind = bnb.nn.Linear8bitLt if mode.startswith("int8") else bnb.nn.Linear4bit
        assert isinstance(model.blocks[0][0], kind)
        assert model.embed.weight.dtype == torch.bfloat16
        stored = {"int8-training": torch.bfloat16, "int8": torch.int8}.get(mode, torch.uint8)
        assert model.lm_head.weight.dtype == stored
        with torch.no_grad():
            found = model(TOKENS)
        assert found.dtype == torch.float32
        relative = (found - expected).norm() / expected.norm()
        assert 0 < relative < 0.2, relative

        path = tmp_path / "quantised.ckpt"
        fabric.save(path, {"model": model})
        torch.manual_seed(1)
        other = fabric.setup(Net())
        fabric.load(path, {"model": other})
        with torch.no_grad():
            assert torch.equal(other(TOKENS), found)


def test_ignored_modules_stay_as_they_are(tmp_path):
    from poplin_bitsandbytes import BitsandbytesPrecision

    precision = BitsandbytesPrecision("nf4", dtype=torch.float32, ignore_modules={"lm_head", "blocks.1"})
    with Fabric(accelerator="cpu", devices=1, plugins=precision) as fabric:
        model = fabric.setup(make())
        kinds = {name: type(child).__name__ for name, child in model.named_modules() if hasattr(child, "in_features")}
        assert kinds == {
            "blocks.0.0": "QuantisedLinear4bit",
            "blocks.0.2": "QuantisedLinear4bit",
            "blocks.1.0": "Linear",
            "blocks.1.2": "Linear",
            "lm_head": "Linear",
        }
        assert torch.equal(model.lm_head.weight, make().lm_head.weight)


@pytest.mark.parametrize("mode", ["nf4", "int8", "int8-training"])
def test_what_can_be_trained_is_trained_and_nothing_else(mode):
    with Fabric(accelerator="cpu", devices=1, precision=mode) as fabric:
        model = fabric.setup_module(make())
        trainable = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        names = {name for name, _ in trainable}
        assert {"norm.weight", "embed.weight", "lm_head.bias"} <= names
        assert ("lm_head.weight" in names) is (mode == "int8-training")
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        optimizer = fabric.setup_optimizers(torch.optim.SGD([value for _, value in trainable], lr=0.5))
        losses = []
        for _ in range(15):
            loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1000.0)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] - 0.3, losses
        for name, value in model.named_parameters():
            assert torch.equal(before[name], value.detach()) is (name not in names), name


def test_init_module_quantises_layers_as_they_are_made_and_gives_the_same_values():
    import bitsandbytes as bnb

    with Fabric(accelerator="cpu", devices=1, precision="nf4") as fabric:
        with fabric.init_module():
            made = make()
        assert made.blocks[0][0].weight.dtype == torch.uint8
        assert isinstance(made.lm_head, bnb.nn.Linear4bit)
        assert isinstance(nn.Sequential(nn.Linear(2, 2))[0], nn.Linear)
        assert not isinstance(nn.Sequential(nn.Linear(2, 2))[0], bnb.nn.Linear4bit)  # outside again
        model = fabric.setup(made)
        assert torch.isfinite(model(TOKENS)).all()


def test_ignored_modules_stay_as_they_are_under_init_module_too():
    from poplin_bitsandbytes import BitsandbytesPrecision

    precision = BitsandbytesPrecision("int8", ignore_modules={"blocks.1", "lm_head"})
    with Fabric(accelerator="cpu", devices=1, plugins=precision) as fabric:
        with fabric.init_module():
            made = make()
        assert type(made.blocks[0][0]) is nn.Linear
        model = fabric.setup(made)
        assert model.blocks[0][0].weight.dtype == torch.int8
        assert type(model.blocks[1][0]) is type(model.lm_head) is nn.Linear


def test_the_users_model_of_full_precision_is_loaded_before_it_is_set_up(tmp_path):
    source, path = make(), tmp_path / "full.ckpt"
    with Fabric(accelerator="cpu", devices=1) as fabric:
        fabric.save(path, source.state_dict())
    with Fabric(accelerator="cpu", devices=1, precision="nf4") as fabric:
        torch.manual_seed(5)
        model = Net()
        fabric.load_raw(path, model)
        found = fabric.setup(model)(TOKENS)
    expected = source(TOKENS)
    assert (found - expected).norm() / expected.norm() < 0.2


def test_what_cannot_be_right_is_refused_and_nothing_is_touched():
    with Fabric(accelerator="cpu", devices=1, precision="nf4") as fabric:
        with pytest.raises(ArgumentValueError, match="single nn.Linear"):
            fabric.setup(nn.Linear(64, 64))
        with torch.device("meta"):
            empty = Net()
        with pytest.raises(UsageError, match=r"'lm_head'.*meta"):
            fabric.setup(empty)
        tied = make()
        tied.lm_head.weight = tied.embed.weight
        kept = copy.deepcopy(tied.state_dict())
        with pytest.raises(ArgumentValueError, match=r"'lm_head' is tied to that of 'embed'"):
            fabric.setup(tied)
        assert type(tied.blocks[0][0]) is nn.Linear
        assert all(torch.equal(kept[name], value) for name, value in tied.state_dict().items())
        with fabric.init_module():
            made = make()
        made.lm_head.weight = nn.Parameter(torch.ones(10, 64))
        with pytest.raises(ArgumentValueError, match="replaced after it was made"):
            fabric.setup(made)
