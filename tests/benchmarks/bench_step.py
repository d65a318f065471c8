"""What a training step costs beyond the same raw loop: tiny MLP, one CPU process.

    python tests/benchmarks/bench_step.py [--pairs 400]

The loops run in turn, in chunks of ten steps; long chunks would give intervals ten times wider on a shared machine.
Printed is the median of the differences to the raw loop of the same round, with the middle half of them in brackets;
processor time of the one thread, since wall-clock time says nothing while others use the machine.
lightning-fabric runs beside it if it is installed (``pip install lightning-fabric``).

Where the interval is wider than the bar, the second part counts: the same loop with a model, a loss and an optimizer
that compute nothing, so that only the Python of the Fabrics is left; the fastest of many chunks.
"""

import argparse
import contextlib
import statistics
import time

import torch
from torch import nn

STEPS = 10


def model_and_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def raw_loop(precision, clip):
    model, optimizer = model_and_optimizer()
    x = torch.randn(4, 8)
    parameters = list(model.parameters())
    context = contextlib.nullcontext if precision == "32-true" else lambda: torch.autocast("cpu", torch.bfloat16)
    plain = precision == "32-true"

    def steps():
        for _ in range(STEPS):
            if plain:
                loss = model(x).mean()
            else:
                with context():
                    output = model(x)
                loss = output.float().mean()  # as both Fabrics do: outputs come back in float32
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
            optimizer.step()
            optimizer.zero_grad()

    return steps


def fabric_loop(fabric_class, precision, clip):
    fabric = fabric_class(accelerator="cpu", devices=1, precision=precision)
    model, optimizer = fabric.setup(*model_and_optimizer())
    x = torch.randn(4, 8)

    def steps():
        for _ in range(STEPS):
            loss = model(x).mean()
            fabric.backward(loss)
            if clip:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()

    return steps


class NoWork(nn.Linear):
    def forward(self, x):
        return x.detach().requires_grad_()  # as every output in training does


class NoLoss:
    def backward(self):
        pass


class NoStep(torch.optim.SGD):
    def step(self, closure=None):
        pass

    def zero_grad(self, set_to_none=True):
        pass


def python_loop(fabric_class, precision):
    model, x, loss = NoWork(1, 1), torch.randn(4, 8), NoLoss()
    optimizer = NoStep(model.parameters(), lr=1e-3)
    backward = NoLoss.backward
    if fabric_class is not None:
        fabric = fabric_class(accelerator="cpu", devices=1, precision=precision)
        model, optimizer = fabric.setup(model, optimizer)
        backward = fabric.backward
    plain = fabric_class is not None or precision == "32-true"

    def steps():
        for _ in range(STEPS):
            if plain:
                model(x)
            else:
                with torch.autocast("cpu", torch.bfloat16):
                    model(x)
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return steps


def microseconds(steps):
    start = time.thread_time()
    steps()
    return (time.thread_time() - start) / STEPS * 1e6


def compare(title, loops, pairs):
    for steps in loops.values():
        microseconds(steps)
    rounds = [{name: microseconds(steps) for name, steps in loops.items()} for _ in range(pairs)]
    typical = statistics.median(one["raw"] for one in rounds)
    print(f"{title}: the raw step takes {typical:.1f} µs")
    medians = {}
    for name in [name for name in loops if name != "raw"]:
        over = [one[name] - one["raw"] for one in rounds]
        low, medians[name], high = statistics.quantiles(over, n=4)
        print(f"  {name:17} + {medians[name]:6.2f} µs [{low:.2f}, {high:.2f}]")
    if len(medians) == 2:
        poplin, peer = medians.values()
        print(f"  poplin / lightning-fabric: {poplin / peer:.3f}  (bar: at most 0.1, and about 3 µs)")


def compare_python(title, loops, rounds):
    best = {name: min(microseconds(steps) for _ in range(rounds)) for name, steps in loops.items()}
    over = {name: value - best["raw"] for name, value in best.items() if name != "raw"}
    print(f"{title}: " + ", ".join(f"{name} + {value:.2f} µs" for name, value in over.items()))
    if len(over) == 2:
        poplin, peer = over.values()
        print(f"  poplin / lightning-fabric: {poplin / peer:.3f}  (bar: at most 0.1, and about 3 µs)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400, help="rounds of chunks of ten steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    from poplin import Fabric

    classes = {"poplin": Fabric}
    try:
        from lightning_fabric import Fabric as Peer
    except ImportError:
        print("lightning-fabric is not installed: no comparison")
    else:
        classes["lightning-fabric"] = Peer
    for precision, clip in (("32-true", False), ("bf16-mixed", False), ("32-true", True)):
        title = precision + (", with clipping" if clip else "")
        loops = {"raw": raw_loop(precision, clip)}
        try:
            loops |= {name: fabric_loop(each, precision, clip) for name, each in classes.items()}
        except ValueError as error:
            print(f"{title}: not measured ({error})")
            continue
        compare(title, loops, arguments.pairs)
    print("Python alone, without the work:")
    for precision in ("32-true", "bf16-mixed"):
        loops = {"raw": python_loop(None, precision)}
        loops |= {name: python_loop(each, precision) for name, each in classes.items()}
        compare_python(precision, loops, 5 * arguments.pairs)


if __name__ == "__main__":
    main()
