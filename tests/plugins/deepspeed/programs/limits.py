"""What goes wrong, what is refused, and what is unusual, at each stage."""

import copy
import pickle
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from common import RANK, WORLD, Cases, Model, batches, ddp, distance, error_of, model_of, train, weights, zero
from torch import nn

from poplin.testing.ranks import report

FOLDER = Path(sys.argv[1])
DATA = batches()
LINEAR = nn.functional.linear


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)


def setup(fabric, seed=0, model=None):
    model = model or model_of(seed)
    return fabric.setup(model, adam(model))


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("in the backward")


def errors_in_a_step(fabric):
    found = {}
    model, optimizer = setup(fabric)
    train(fabric, model, optimizer, DATA[:2])
    model.fails = True
    found["forward"] = error_of(lambda: model(DATA[2]))[0]
    model.fails = False
    optimizer.zero_grad()
    handle = model.again.register_forward_hook(lambda module, args, output: Fails.apply(output))
    loss = model(DATA[2]).mean()
    handle.remove()
    found["backward"] = error_of(lambda: fabric.backward(loss, model=model))[0]

    def closure():
        raise ArithmeticError("in the closure")

    found["closure"] = error_of(lambda: optimizer.step(closure))[0]
    train(fabric, model, optimizer, DATA[2:])
    found["then"] = distance(weights(fabric, model), PLAIN)
    return found


def unusual_steps(fabric):
    found = {}
    model, optimizer = setup(fabric)
    for batch in DATA:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        fabric.backward(loss * 0.3, model=model, retain_graph=True)
        fabric.backward(loss * 0.7, model=model)
        optimizer.step()
    found["twice through one graph"] = distance(weights(fabric, model), PLAIN)
    model, optimizer = setup(fabric)
    for batch in DATA:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            fabric.backward(loss, model=model)
            return loss

        loss = optimizer.step(closure)
    found["closure"] = distance(weights(fabric, model), PLAIN)
    found["its loss"] = float(loss) > 0
    before = weights(fabric, model)
    optimizer.step()  # nobody called backward
    found["empty step"] = distance(weights(fabric, model), before)
    found["its norm"] = float(fabric.clip_gradients(model, optimizer, max_norm=1.0))

    model, optimizer = setup(fabric)
    for number, batch in enumerate(DATA):
        model.uses_all = number == 0
        train(fabric, model, optimizer, [batch])
    found["left out"] = distance(weights(fabric, model), LEFT_OUT)

    model, optimizer = setup(fabric)
    optimizer.zero_grad()
    fabric.backward(model(DATA[0] * float("inf")).mean(), model=model)

    def clip(**options):
        return fabric.clip_gradients(model, optimizer, max_norm=1.0, **options)

    found["not finite"] = error_of(clip)[:2]
    found["returned"] = str(float(clip(error_if_nonfinite=False)))
    before = weights(fabric, model)
    optimizer.step()
    found["skipped"] = distance(weights(fabric, model), before)
    found["told"] = fabric.strategy.step_was_skipped(optimizer.optimizer, model._forward_module)
    train(fabric, model, optimizer, DATA)
    found["then"] = distance(weights(fabric, model), PLAIN)
    return found


def state_from_before(fabric):
    def trained():
        model = model_of()
        optimizer = adam(model)
        for value in (1.0, 2.0):
            optimizer.zero_grad()
            model(torch.full((2, 5), value)).mean().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = fabric.setup(*trained())
    train(fabric, model, optimizer, DATA)
    other, other_optimizer = REPLICAS.setup(*trained())
    train(REPLICAS, other, other_optimizer, DATA)
    return distance(weights(fabric, model), weights(REPLICAS, other))


def schedulers(fabric):
    def run(fabric):
        model = model_of()
        optimizer = adam(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
        for batch in DATA:
            train(fabric, model, optimizer, [batch])
            scheduler.step()
        return weights(fabric, model), optimizer.param_groups[0]["lr"]

    (one, lr), (other, other_lr) = run(fabric), run(REPLICAS)
    return [distance(one, other), lr, other_lr]


def without_optimizer(fabric):
    model = fabric.setup(model_of())
    output = model(DATA[0])
    error = error_of(lambda: fabric.backward(model(DATA[0]).mean(), model=model))
    frozen = model_of().requires_grad_(False)
    frozen, optimizer = fabric.setup(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1))
    optimizer.step()
    return [torch.equal(output, model_of()(DATA[0])), error[:2], torch.equal(frozen(DATA[0]), output)]


def frozen_parameters(fabric):
    def partly():
        model = model_of()
        model.out.requires_grad_(False)
        return model

    found = {}
    model, optimizer = setup(fabric, model=partly())
    train(fabric, model, optimizer, DATA)
    other, other_optimizer = setup(REPLICAS, model=partly())
    train(REPLICAS, other, other_optimizer, DATA)
    found["trained"] = distance(weights(fabric, model), weights(REPLICAS, other))
    stage = fabric.strategy.stage
    fabric.save(FOLDER / f"frozen{stage}", {"model": model, "optimizer": optimizer})
    fresh = partly()
    torch.nn.init.constant_(fresh.out.weight, 9.0)
    fresh, fresh_optimizer = setup(fabric, model=fresh)
    fabric.load(FOLDER / f"frozen{stage}", {"model": fresh, "optimizer": fresh_optimizer})
    found["loaded"] = distance(weights(fabric, fresh), weights(fabric, model))
    fabric.strategy.exclude_frozen_parameters = True
    fabric.save(FOLDER / f"trained{stage}", {"model": model})
    fabric.strategy.exclude_frozen_parameters = False
    found["left out"] = error_of(lambda: fabric.load(FOLDER / f"trained{stage}", {"model": fresh}))[2]
    return found


def made_by_init_module(fabric):
    torch.manual_seed(0)
    with fabric.init_module():
        model = Model()
    sizes = {parameter.numel() for parameter in model.parameters()}
    model, optimizer = setup(fabric, model=model)
    train(fabric, model, optimizer, DATA)
    found = [sizes == {0}, distance(weights(fabric, model), PLAIN)]
    path = FOLDER / f"init{fabric.strategy.stage}"
    fabric.save(path, {"model": model, "optimizer": optimizer})
    with fabric.init_module(empty_init=True):
        empty = Model()
    empty, empty_optimizer = setup(fabric, model=empty)
    fabric.load(path, {"model": empty, "optimizer": empty_optimizer})
    return [*found, distance(weights(fabric, empty), weights(fabric, model))]


def refusals(fabric):
    model, optimizer = setup(fabric)
    raw = model_of()
    both = nn.ModuleList([model.module.out, nn.Linear(1, 1)])
    batch = DATA[0]
    found = {
        "two optimizers": lambda: fabric.setup(
            raw, *(torch.optim.SGD(p.parameters(), 0.1) for p in (raw.out, raw.back))
        ),
        "another's parameters": lambda: fabric.setup(raw, adam(model_of())),
        "LBFGS": lambda: fabric.setup(raw, torch.optim.LBFGS(raw.parameters())),
        "apart": lambda: fabric.setup_optimizers(adam(raw)),
        "shared": lambda: fabric.setup(both, adam(both)),
        "by value": lambda: fabric.clip_gradients(model, optimizer, clip_val=1.0),
        "other norm": lambda: fabric.clip_gradients(model, optimizer, max_norm=1.0, norm_type="inf"),
        "a part": lambda: fabric.clip_gradients(model.module.out, optimizer, max_norm=1.0),
        "plain backward": lambda: model(batch).mean().backward(),
        "a vector": lambda: fabric.backward(model(batch), model=model),
        "create_graph": lambda: fabric.backward(model(batch).mean(), model=model, create_graph=True),
        "unmarked": lambda: model.encode(batch),
        "pickle": lambda: pickle.dumps(model),
        "copy": lambda: copy.deepcopy(model),
        "step's argument": lambda: optimizer.step(foo=1),
        "filter": lambda: fabric.save(FOLDER / "no", {"m": model}, filter={"m": lambda name, value: True}),
        "optimizer alone": lambda: fabric.save(FOLDER / "no", {"o": optimizer}),
        "a URL": lambda: fabric.save("memory://no", {"m": model}),
        "not there": lambda: fabric.load(FOLDER / "nothing", {"m": model}),
    }
    found = {name: error_of(function)[:2] for name, function in found.items()}
    optimizer.zero_grad()
    model.mark_forward_method("encode")
    found["marked"] = list(model.encode(batch).shape)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with fabric.no_backward_sync(model):
            pass
    found["no sync"] = [str(one.message) for one in warned]
    found["exists"] = (FOLDER / "no").exists()
    return found


def generator_and_discriminator(fabric, detached):
    def net(sizes, seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:]))

    softplus = nn.functional.softplus
    generator, discriminator = net((3, 9, 4), 0), net((4, 9, 1), 1)
    generator, step_generator = fabric.setup(generator, adam(generator))
    discriminator, step_discriminator = fabric.setup(discriminator, adam(discriminator))
    random = torch.Generator().manual_seed(5)
    for _ in range(4):
        noise = torch.randn(8, 3, generator=random).chunk(WORLD)[RANK]
        real = torch.randn(8, 4, generator=random).chunk(WORLD)[RANK]
        step_discriminator.zero_grad()
        fake = generator(noise).detach() if detached else generator(noise)
        fabric.backward(softplus(-discriminator(real)).mean(), model=discriminator)
        fabric.backward(softplus(discriminator(fake)).mean(), model=discriminator)
        step_discriminator.step()
        step_generator.zero_grad()
        fabric.backward(softplus(-discriminator(generator(noise))).mean(), model=generator)
        step_generator.step()
    state = {"nets": [generator, discriminator], "optimizers": {"g": step_generator, "d": step_discriminator}}
    parts = {**{f"g.{k}": v for k, v in weights(fabric, generator).items()}}
    return parts | {f"d.{k}": v for k, v in weights(fabric, discriminator).items()}, state, noise


def adversarial(fabric):
    found = {}
    for detached in (True, False):
        trained, state, noise = generator_and_discriminator(fabric, detached)
        found[f"detached {detached}"] = distance(trained, GANS[detached])
    generator, discriminator = state["nets"]
    found["which"] = error_of(lambda: fabric.backward(discriminator(generator(noise)).mean()))[:2]
    path = FOLDER / f"gan{fabric.strategy.stage}"
    fabric.save(path, state)
    fabric.save(path, state)  # over the first
    _, other, _ = generator_and_discriminator(fabric, True)
    fabric.load(path, other)
    pairs = zip(other["nets"], state["nets"], strict=True)
    found["loaded"] = max(distance(weights(fabric, one), weights(fabric, two)) for one, two in pairs)
    fabric.barrier()
    found["folders"] = len([entry for entry in path.iterdir() if entry.is_dir()])
    return found


def batch_sizes(fabric):
    data = [torch.zeros(5)] * 24
    fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=3))
    model, _ = setup(fabric)
    return [model._forward_module.train_micro_batch_size_per_gpu(), model._forward_module.train_batch_size()]


def settings_of_checkpointing(fabric):
    """deepspeed.checkpointing.checkpoint in the user's module, with partitioned activations."""
    import deepspeed

    class Checkpointed(Model):
        def forward(self, x):
            if not torch.is_grad_enabled():
                return super().forward(x)
            x = x.clone().requires_grad_()  # a re-entrant checkpoint needs an input with a gradient
            return self.out(deepspeed.checkpointing.checkpoint(self.first, x))

        def first(self, x):
            return self.again(self.back(torch.tanh(self.hidden(x))))

    torch.manual_seed(0)
    model, optimizer = setup(fabric, model=Checkpointed())
    train(fabric, model, optimizer, DATA)
    module = deepspeed.checkpointing
    return [module.is_configured(), distance(weights(fabric, model), CHECKPOINTED)]


def impossible_config():
    """DeepSpeed refuses when the engine is made: the user's objects are as they were."""
    fabric = zero(2, config={"zero_optimization": {"nonsense": 1}})
    model = model_of()
    optimizer = adam(model)
    model(DATA[0]).mean().backward()
    optimizer.step()
    error = error_of(lambda: fabric.setup(model, optimizer))
    kept = [len(optimizer.state), optimizer.param_groups[0]["params"][0] is model.hidden.weight]
    fabric.close()
    return [*error, *kept]


REPLICAS = ddp()


def plain(uses_all=lambda number: True):
    model, optimizer = setup(REPLICAS)
    for number, batch in enumerate(DATA):
        model.uses_all = uses_all(number)
        train(REPLICAS, model, optimizer, [batch])
    return weights(REPLICAS, model)


PLAIN = plain()
LEFT_OUT = plain(lambda number: number == 0)
CHECKPOINTED = plain(lambda number: False)
GANS = {detached: generator_and_discriminator(REPLICAS, detached)[0] for detached in (True, False)}
results = {}
for stage in (1, 2, 3):
    cases = results[f"stage {stage}"] = Cases()
    fabric = zero(stage)
    cases.run("none set up", lambda f=fabric: error_of(lambda: f.backward(torch.ones(2, requires_grad=True).sum()))[:2])
    for case in (
        errors_in_a_step,
        unusual_steps,
        state_from_before,
        schedulers,
        without_optimizer,
        frozen_parameters,
        made_by_init_module,
        refusals,
        adversarial,
        batch_sizes,
    ):
        cases.run(case.__name__, case, fabric)
    fabric.close()
checkpointing = zero(2, synchronize_checkpoint_boundary=True)
results["checkpointing"] = Cases()
results["checkpointing"].run("checkpointing", settings_of_checkpointing, checkpointing)
checkpointing.close()
results["checkpointing"].run("impossible config", impossible_config)
REPLICAS.close()
results["after"] = {
    "process group": torch.distributed.is_initialized(),
    "linear": nn.functional.linear is LINEAR,
}
report(results)
