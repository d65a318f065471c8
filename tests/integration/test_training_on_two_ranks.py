"""Training through Fabric on two real ranks: the same numbers as one process, a resume to the bit, a GAN, callbacks."""

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.testing.ranks import run_ranks

STEPS, BATCH = 10, 8

SCRIPT = """
import sys, os, json, warnings
warnings.simplefilter("error", DeprecationWarning)
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from poplin import Fabric, is_wrapped
from poplin.testing.ranks import report

FOLDER = sys.argv[1]
RANK = int(os.environ["RANK"])
torch.set_num_threads(1)
out = {}

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))

def data(steps=10, batch=8):
    generator = torch.Generator().manual_seed(5)
    sizes = ((batch, 6), (batch, 2))
    return [tuple(torch.randn(size, generator=generator) for size in sizes) for _ in range(steps)]

def mine(tensor):
    return tensor.chunk(2)[RANK]

def state(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}

class Events:
    def __init__(self): self.seen = []
    def __getattr__(self, name):
        if not name.startswith("on_"): raise AttributeError(name)
        return lambda **kwargs: self.seen.append(name)

# --- the numbers of one process, with and without accumulation and clipping
for case, accumulate, clip in (("plain", 1, None), ("clip", 1, 0.05), ("accumulate", 2, 0.05)):
    events = Events()
    with Fabric(accelerator="cpu", devices=2, strategy="ddp", callbacks=events) as fabric:
        assert not fabric.launched
        try:
            fabric.setup(make())
        except RuntimeError as error:
            out["needs_launch"] = str(error)
        fabric.launch()
        model = make()
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        if case == "plain":
            from poplin.utilities import is_shared_filesystem
            out["shared"] = [is_shared_filesystem(fabric.strategy, FOLDER), os.listdir(FOLDER)]
        out["wrapped"] = [is_wrapped(model), isinstance(model, nn.Sequential), list(model.state_dict())]
        for step, (inputs, targets) in enumerate(data()):
            sync = (step + 1) % accumulate == 0
            with fabric.no_backward_sync([model], enabled=not sync):
                loss = nn.functional.mse_loss(model(mine(inputs)), mine(targets)) / accumulate
                fabric.backward(loss)
            if sync:
                if clip: fabric.clip_gradients(model, optimizer, max_norm=clip)
                optimizer.step()
                optimizer.zero_grad()
        out[case] = state(model)
    out["events_" + case] = {name: events.seen.count(name) for name in set(events.seen)}

# --- a resume equals the uninterrupted run, to the bit
def train(epochs, resume=None, save=None):
    with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
        fabric.launch()
        fabric.seed_everything(3, verbose=False, per_rank=True)
        model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
        pairs = data(1, 40)[0]
        loader = fabric.setup_dataloaders(DataLoader(TensorDataset(*pairs), batch_size=4, shuffle=True))
        run = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        run |= {"fabric": fabric, "step": 0}
        if resume: fabric.load(resume, run)
        seen = []
        while run["step"] < epochs * len(loader):
            for inputs, targets in loader:
                seen.append(inputs[:, 0].tolist())
                fabric.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step(); optimizer.zero_grad()
                run["step"] += 1
                if save and run["step"] == 8:          # in the middle of the second epoch
                    fabric.save(save, run)
                    return seen, None
            scheduler.step()
        return seen, {**state(model), "lr": optimizer.param_groups[0]["lr"]}

path = os.path.join(FOLDER, "middle.ckpt")
whole, end = train(4)
first, _ = train(4, save=path)
rest, resumed = train(4, resume=path)
out["resume"] = {"same_data": first + rest == whole, "same_end": resumed == end}
out["resume"]["n"] = [len(first), len(rest), len(whole)]
out["first_batches"] = whole[:5]

# --- a GAN: two models, two optimizers, gradients of one never reach the other's step
with Fabric(accelerator="cpu", devices=2, strategy="ddp_find_unused_parameters_true") as fabric:
    fabric.launch()
    torch.manual_seed(1)
    generator, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    generator, g_optimizer = fabric.setup(generator, torch.optim.SGD(generator.parameters(), lr=0.1))
    judge, j_optimizer = fabric.setup(judge, torch.optim.SGD(judge.parameters(), lr=0.1))
    noise = torch.randn(8, 4, generator=torch.Generator().manual_seed(RANK))
    for _ in range(3):
        j_optimizer.zero_grad()
        fabric.backward(judge(generator(noise).detach()).mean())
        j_optimizer.step()
        g_optimizer.zero_grad()
        fabric.backward(-judge(generator(noise)).mean())
        g_optimizer.step()
    mine_ = torch.cat([p.detach().flatten() for p in [*generator.parameters(), *judge.parameters()]])
    everyone = fabric.all_gather(mine_)
    out["gan_equal_on_ranks"] = bool(torch.equal(everyone[0], everyone[1]))

# --- a frozen module passes through; a method is refused until it is marked
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.layer = nn.Linear(6, 2)
    def forward(self, x): return self.layer(x)
    def loss_of(self, x, y): return nn.functional.mse_loss(self(x), y)
    def training_step(self, batch, batch_idx): return self.loss_of(*batch)

with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
    fabric.launch()
    frozen = make().requires_grad_(False)
    frozen = fabric.setup(frozen)
    out["frozen"] = list(frozen(torch.ones(1, 6)).shape)
    torch.manual_seed(2)
    net = Net()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = map(mine, data(1)[0])
    try:
        net.loss_of(x, y)
    except RuntimeError as error:
        out["unmarked"] = str(error)
    fabric.backward(net.training_step((x, y), batch_idx=0))
    marked = [p.grad.clone() for p in net.parameters()]
    optimizer.zero_grad()
    net.mark_forward_method(net.loss_of)
    fabric.backward(net.loss_of(x, y))
    out["marked_synchronises"] = all(torch.equal(a, p.grad) for a, p in zip(marked, net.parameters()))
    gathered = fabric.all_gather({"rank": fabric.global_rank, "grad": marked[0]})
    out["gathered"] = gathered["rank"].tolist()
    out["equal_grads"] = bool(torch.equal(gathered["grad"][0], gathered["grad"][1]))
    with fabric.rank_zero_first():
        pass

# --- evaluation counts every sample once
with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
    fabric.launch()
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(11)), batch_size=3))
    out["metrics"] = sorted(torch.cat([fabric.gather_for_metrics(batch[0]) for batch in loader]).tolist())

# --- one device after two behaves as in a fresh process
with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
    fabric.launch()
    out["explain"] = fabric.explain()
report(out)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(SCRIPT, world_size=2, args=[str(tmp_path_factory.mktemp("run"))], timeout=170)


def train_alone(accumulate=1, clip=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 6, generator=generator)
        targets = torch.randn(BATCH, 2, generator=generator)
        (nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if (step + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize(
    ("case", "accumulate", "clip"), [("plain", 1, None), ("clip", 1, 0.05), ("accumulate", 2, 0.05)]
)
def test_two_ranks_equal_one_process(ranks, case, accumulate, clip):
    alone = train_alone(accumulate, clip)
    assert ranks[0][case] == ranks[1][case]
    for name, value in alone.items():
        assert (torch.tensor(ranks[0][case][name]) - value).abs().max() <= 1e-6, name


def test_what_needs_processes_says_to_launch(ranks):
    assert "fabric.launch()" in ranks[0]["needs_launch"]


def test_the_wrapped_model_is_an_instance_of_its_class_with_its_own_names(ranks):
    assert ranks[0]["wrapped"] == [True, True, ["0.weight", "0.bias", "2.weight", "2.bias"]]


def test_both_ranks_see_one_file_system_and_the_look_leaves_nothing(ranks):
    assert [rank["shared"][0] for rank in ranks] == [True, True]
    assert ranks[0]["shared"][1] == []


def test_each_hook_fires_as_often_as_what_it_is_about(ranks):
    assert ranks[0]["events_accumulate"] == {
        "on_after_setup": 1,
        "on_backward_start": 10,
        "on_backward_end": 10,
        "on_optimizer_step_start": 5,
        "on_after_optimizer_step": 5,
        "on_close": 1,
    }


def test_a_resume_in_the_middle_of_an_epoch_equals_the_uninterrupted_run(ranks):
    for rank in ranks:
        assert rank["resume"]["n"] == [8, 12, 20]
        assert rank["resume"]["same_data"]
        assert rank["resume"]["same_end"]
    assert ranks[0]["first_batches"] != ranks[1]["first_batches"]
    seen = sorted(value for rank in ranks for batch in rank["first_batches"] for value in batch)
    assert len(set(seen)) == 40  # every sample once in an epoch


def test_a_gan_stays_equal_on_both_ranks(ranks):
    assert ranks[0]["gan_equal_on_ranks"]
    assert ranks[1]["gan_equal_on_ranks"]


def test_marked_methods_synchronise_and_unmarked_ones_are_refused(ranks):
    assert "mark_forward_method('loss_of')" in ranks[0]["unmarked"]
    assert ranks[0]["marked_synchronises"]
    assert ranks[0]["equal_grads"]
    assert ranks[0]["gathered"] == [0, 1]
    assert ranks[0]["frozen"] == [1, 2]


def test_evaluation_counts_every_sample_once(ranks):
    assert ranks[0]["metrics"] == ranks[1]["metrics"] == list(range(11))


def test_the_trace_tells_what_the_launcher_made(ranks):
    for words in ("torchrun", "poplin-ddp", "process group", "2 process(es)"):
        assert words in ranks[0]["explain"]


def test_one_process_behaves_the_same_after_a_fabric_was_closed():
    for _ in range(2):
        with Fabric(accelerator="cpu", devices=1, strategy="auto") as fabric:
            fabric.launch()
            assert fabric.world_size == 1
