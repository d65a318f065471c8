"""From every stage to other strategies and back, by every checkpoint IO; and to and from DeepSpeed alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from common import RANK, Cases, adamw, batches, ddp, distance, model_of, same, states, train, weights, zero

from poplin.testing.ranks import report

FOLDER = Path(sys.argv[1])
DATA = batches()
PLUGINS = (None, "torch", "sharded")


def setup(fabric, seed=0):
    model = model_of(seed)
    return fabric.setup(model, adamw(model))


def to_and_fro(stage, plugins):
    """DDP goes on from where ZeRO stopped, and ZeRO from where DDP did."""
    found = {}
    path = FOLDER / f"{stage}-{plugins}"
    fabric, replicas = zero(stage, plugins=plugins), ddp()
    model, optimizer = setup(fabric)
    train(fabric, model, optimizer, DATA[:2])
    fabric.save(path, {"model": model, "optimizer": optimizer, "step": 2})
    saved = weights(fabric, model)
    other, other_optimizer = setup(replicas, 1)
    rest = replicas.load(path, {"model": other, "optimizer": other_optimizer})
    found["the rest"] = rest
    train(replicas, other, other_optimizer, DATA[2:])
    found["to ddp"] = distance(weights(replicas, other), PLAIN)
    found["without a state"] = sorted(replicas.load(path))

    other, other_optimizer = setup(replicas)
    train(replicas, other, other_optimizer, DATA[:2])
    replicas.save(path.with_suffix(".ckpt"), {"model": other, "optimizer": other_optimizer, "step": 2})
    model, optimizer = setup(fabric, 1)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(path.with_suffix(".ckpt"), state)
    train(fabric, model, optimizer, DATA[2:])
    found["from ddp"] = [distance(weights(fabric, model), PLAIN), state["step"]]
    if RANK == 0:
        torch.save(model_of(8).state_dict(), path.with_suffix(".pt"))
    fabric.barrier()
    fabric.load_raw(path.with_suffix(".pt"), model)
    found["plain weights"] = distance(weights(fabric, model), model_of(8).state_dict())

    fabric.load(path, {"model": model})  # the weights alone
    found["weights alone"] = same(weights(fabric, model), saved)
    handle = fabric.save_async(path, {"model": model, "optimizer": optimizer})
    train(fabric, model, optimizer, DATA[:1])
    handle.wait()
    fabric.load(path, {"model": model})
    found["in the background"] = same(weights(fabric, model), saved)
    fabric.close()
    replicas.close()
    return found


def between_stages():
    fabrics = {stage: zero(stage, "bf16-mixed") for stage in (1, 2, 3)}
    reached = {}
    for stage, fabric in fabrics.items():
        model, optimizer = setup(fabric)
        train(fabric, model, optimizer, DATA[:2])
        fabric.save(FOLDER / f"from{stage}", {"model": model, "optimizer": optimizer})
        reached[stage] = states(fabric, model, optimizer)
    found = {}
    for stage, fabric in fabrics.items():
        for source, expected in reached.items():
            model, optimizer = setup(fabric, 1)
            fabric.load(FOLDER / f"from{source}", {"model": model, "optimizer": optimizer})
            found[f"{source} to {stage}"] = same(states(fabric, model, optimizer), expected)
    for fabric in fabrics.values():
        fabric.close()
    return found


def deepspeed_alone(stage):
    """DeepSpeed's own engine reads our folder, and we read the folder that it writes."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    fabric = zero(stage)
    model, optimizer = setup(fabric)
    train(fabric, model, optimizer, DATA[:2])
    fabric.save(FOLDER / f"ours{stage}", {"model": model, "optimizer": optimizer, "step": 2})
    plain = model_of(1)
    config = fabric.strategy._complete_config()
    engine, *_ = deepspeed.initialize(model=plain, optimizer=adamw(plain), config=config, dist_init_required=False)
    _, client = engine.load_checkpoint(str(FOLDER / f"ours{stage}"))
    found["client state"] = fabric.broadcast(client.get("step"))  # rank 0's: the others' files have none
    read = {name: safe_get_full_fp32_param(parameter) for name, parameter in plain.named_parameters()}
    found["read by it"] = distance(weights(fabric, model), read)
    engine.save_checkpoint(str(FOLDER / f"its{stage}"), tag="tag7", client_state={"epoch": 4})
    other, other_optimizer = setup(fabric, 2)
    state = {"model": other, "optimizer": other_optimizer, "epoch": 0}
    fabric.load(FOLDER / f"its{stage}", state)
    train(fabric, other, other_optimizer, DATA[2:])
    found["read by us"] = [distance(weights(fabric, other), PLAIN), state["epoch"]]
    engine.destroy()
    fabric.close()
    return found


replicas = ddp()
whole, whole_optimizer = setup(replicas)
train(replicas, whole, whole_optimizer, DATA)
PLAIN = weights(replicas, whole)
replicas.close()
cases = Cases()
for stage in (1, 2, 3):
    for plugins in PLUGINS if stage != 2 else (None,):
        cases.run(f"stage {stage}, plugins={plugins}", to_and_fro, stage, plugins)
    cases.run(f"stage {stage} and DeepSpeed alone", deepspeed_alone, stage)
cases.run("between stages", between_stages)
report(cases)
