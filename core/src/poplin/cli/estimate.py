"""``poplin estimate``: what a model needs in memory under each strategy, before a device is paid for."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from poplin.cli.tables import table
from poplin.cli.torch_import import require_torch
from poplin.errors import ArgumentValueError
from poplin.registry import names
from poplin.utilities.sizes import size_text
from poplin.utilities.unwinding import let_through

#: What is written in place of an optimizer to leave its states out.
NO_OPTIMIZER = "none"


def estimate(options: argparse.Namespace) -> int:
    """Print a table for each model: strategies and world sizes, and what one process would hold.

    Returns:
        0 if anything could be planned for each model, else 1.

    Raises:
        ArgumentValueError: a model, a world or an optimizer that can't be meant.
    """
    require_torch()
    from poplin.cli.planning import World, plan

    worlds = [World.of(size, options.devices_per_node) for size in options.world_size]
    make_optimizer: Any = None if options.optimizer == NO_OPTIMIZER else load_target(options.optimizer)
    every_plan = {}
    for model in options.model:
        build = load_target(model)
        with warnings.catch_warnings():
            if not options.strategy:  # what a strategy that nobody asked for would say is of no interest
                warnings.simplefilter("ignore")
            every_plan[model] = [
                plan(build, strategy, world, precision=options.precision, make_optimizer=make_optimizer)
                for world in worlds
                for strategy in options.strategy or names("strategies")
            ]
    if options.json:
        _print_json(every_plan)
    else:
        for model, plans in every_plan.items():
            _print_plans(model, plans, options)
    return 0 if all(any(one.memory for one in plans) for plans in every_plan.values()) else 1


def load_target(target: str) -> Callable[..., Any]:
    """What ``package.module:name`` or ``path/file.py:name`` stands for.

    Raises:
        ArgumentValueError: there is no such thing, or it can't be called.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ArgumentValueError(
            f"{target!r} names nothing that can be called: write package.module:name, or file.py:name."
        )
    try:
        value: Any = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
        for part in name.split("."):
            value = getattr(value, part)
    except BaseException as error:  # the user's own code is run
        let_through(error)
        raise ArgumentValueError(
            f"{target!r} could not be read: {type(error).__name__}: {error}. Write package.module:name of a module "
            "that can be imported from this folder, or file.py:name."
        ) from error
    if not callable(value):
        raise ArgumentValueError(f"{target!r} is a {type(value).__name__}, which can't be called.")
    called: Callable[..., Any] = value
    return called


def _load_module(name: str) -> Any:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


# --- printing


def _print_json(every_plan: dict[str, list[Any]]) -> None:
    rows = [
        {
            "model": model,
            "strategy": one.strategy,
            "world_size": one.world_size,
            "bytes": None if one.memory is None else {**dataclasses.asdict(one.memory), "device": one.memory.device},
            "reason": one.reason,
        }
        for model, plans in every_plan.items()
        for one in plans
    ]
    print(json.dumps(rows, indent=2))


def _print_plans(model: str, plans: Sequence[Any], options: argparse.Namespace) -> None:
    head = f"{model}, {options.precision or '32-true'}, optimizer {options.optimizer.rpartition(':')[2]}"
    print(f"{head}: bytes in one process, without activations")
    for size, group in groupby(plans, key=lambda one: one.world_size):
        of_world = list(group)
        planned = [one for one in of_world if one.memory is not None]
        print(f"\nworld size {size}")
        if planned:
            header = ["strategy", "parameters", "gradients", "optimizer", "buffers", "communication", "device", "host"]
            print(table([header, *_rows(planned)], indent="  "))
        for one in of_world:
            if one.memory is None:  # the whole reason only for what was asked for
                reason = one.reason if options.strategy else one.reason.partition(". ")[0].splitlines()[0]
                print(f"  {one.strategy}: not planned: {reason}")
    print()


def _rows(plans: Iterable[Any]) -> list[list[str]]:
    """One row for what is the same under several names; the largest first."""
    alike: dict[Any, list[str]] = {}
    for one in plans:
        alike.setdefault((one.memory, one.strategy_class), []).append(one.served_by)
    rows = []
    for (memory, _), spellings in sorted(alike.items(), key=lambda item: -item[0][0].device):
        others = f" (+{len(spellings) - 1} name{'s' * (len(spellings) > 2)})" if len(spellings) > 1 else ""
        parts = (memory.parameters, memory.gradients, memory.optimizer, memory.buffers, memory.communication)
        rows.append([min(spellings, key=len) + others, *map(size_text, (*parts, memory.device, memory.host))])
    return rows
