"""DeepSpeed's config, from a dictionary, a JSON file or the environment, merged with the constructor's arguments.

Pure Python: it knows neither torch nor DeepSpeed.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poplin.errors import ContradictionError
from poplin_deepspeed.errors import DeepSpeedConfigError
from poplin_deepspeed.settings import (
    DEFAULTS,
    KNOWN_KEYS,
    OFFLOAD_DEFAULTS,
    PLACES,
    SECTIONS,
    ZERO,
    get,
    leaves,
    put,
    without_auto,
)

#: Environment variables that name a JSON file (or hold JSON); the second is Lightning's.
VARIABLES = ("POPLIN_DEEPSPEED_CONFIG", "PL_DEEPSPEED_CONFIG_PATH")
_NVME_DEFAULT = "/local_nvme"


def build(
    config: Mapping[str, Any] | str | os.PathLike[str] | None,
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The config that an engine is made with, save for what is known only later: batch sizes and precision.

    Args:
        config: a dictionary, the path of a JSON file, or None for the environment's.
        arguments: the constructor's, those that are not None.
        environ: where :data:`VARIABLES` are looked up.

    Returns:
        A new dictionary.

    Raises:
        DeepSpeedConfigError: it can't be read, can't be meant, or asks for what Poplin decides.
        ContradictionError: two sources say different things.
    """
    read, origin = _read(config, environ)
    merged = without_auto(read)
    _check_keys(merged, origin)
    _check_sections(merged, origin)
    _put_arguments(merged, arguments, origin)
    _put_defaults(merged, arguments)
    _check(merged, origin)
    return merged


def offloads_to(config: Mapping[str, Any], device: str) -> bool:
    """Whether optimizer or parameters are offloaded to ``device``: "cpu" or "nvme"."""
    return any(get(config, (ZERO, section, "device")) == device for section in OFFLOAD_DEFAULTS)


# --- reading


def _read(config: Any, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The config, and where it is from, for messages."""
    given = _from_argument(config)
    found = [(name, _from_text(environ[name], name)) for name in VARIABLES if environ.get(name)]
    for name, other in found:
        if given is not None and other != given:
            raise ContradictionError(
                f"DeepSpeedStrategy(config=...) and the environment variable {name} give different configs: "
                f"{_difference(given, other)}. Give one of them."
            )
        if other != found[0][1]:
            raise ContradictionError(f"The environment variables {' and '.join(VARIABLES)} give different configs.")
    if given is not None:
        return given, "the config"
    return (found[0][1], f"the config of {found[0][0]}") if found else ({}, "the config")


def _from_argument(config: Any) -> dict[str, Any] | None:
    if config is None:
        return None
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if isinstance(config, (str, os.PathLike)):
        return _from_text(os.fspath(config), "config=")
    raise DeepSpeedConfigError(
        f"config= takes a dictionary or the path of a JSON file, and got a {type(config).__name__}."
    )


def _from_text(text: str | bytes, origin: str) -> dict[str, Any]:
    text = os.fsdecode(text)
    where = origin
    if not text.lstrip().startswith("{"):
        where = f"{text} ({origin})"
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise DeepSpeedConfigError(
                f"DeepSpeed's config {where} can't be read: {error.strerror or error}."
            ) from error
        except UnicodeDecodeError as error:
            raise DeepSpeedConfigError(f"DeepSpeed's config {where} is no text.") from error
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise DeepSpeedConfigError(f"DeepSpeed's config {where} is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise DeepSpeedConfigError(f"DeepSpeed's config {where} holds a {type(value).__name__}, not an object.")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} stands there twice")
    return dict(pairs)


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    ours, theirs = dict(leaves(one)), dict(leaves(other))
    places = [place for place in {**ours, **theirs} if ours.get(place) != theirs.get(place)]
    return ", ".join(".".join(place) for place in places[:5]) or "their sections"


# --- merging


def _put_arguments(config: dict[str, Any], arguments: Mapping[str, Any], origin: str) -> None:
    for name, value in arguments.items():
        if name in SECTIONS:
            _put_section(config, name, bool(value), origin)
    for name, value in arguments.items():
        place = PLACES.get(name)
        if place is None:
            continue
        if place[1:2] in (("offload_optimizer",), ("offload_param",)) and get(config, place[:2]) is None:
            continue  # settings of an offload that isn't asked for
        _agree(f"DeepSpeedStrategy({name}={value!r})", value, get(config, place), place, origin)
        put(config, place, value)


def _put_section(config: dict[str, Any], name: str, wanted: bool, origin: str) -> None:
    place = SECTIONS[name]
    section = get(config, place)
    has = section is not None and get(config, (*place, "device")) != "none"
    if section is not None and wanted != has:
        raise ContradictionError(
            f"DeepSpeedStrategy({name}={wanted}) contradicts {origin}, which has {'.'.join(place)}={section!r}. "
            "Say it in one place."
        )
    if wanted and section is None:
        put(config, place, {})


def _agree(source: str, value: Any, other: Any, place: tuple[str, ...], origin: str) -> None:
    if other is not None and other != value:
        raise ContradictionError(
            f"{source} contradicts {origin}, which says {'.'.join(place)}={other!r}. Say it in one place."
        )


def _put_defaults(config: dict[str, Any], arguments: Mapping[str, Any]) -> None:
    for place, value in DEFAULTS.items():
        if get(config, place) is None and place[0] != "fp16":
            put(config, place, value)
    for section, defaults in OFFLOAD_DEFAULTS.items():
        if get(config, (ZERO, section)) is None:
            continue
        for key, value in defaults.items():
            if get(config, (ZERO, section, key)) is None:
                put(config, (ZERO, section, key), value)
        if arguments.get("pin_memory") is not None:
            put(config, (ZERO, section, "pin_memory"), arguments["pin_memory"])
        if get(config, (ZERO, section, "device")) == "nvme" and get(config, (ZERO, section, "nvme_path")) is None:
            put(config, (ZERO, section, "nvme_path"), arguments.get("nvme_path") or _NVME_DEFAULT)


# --- checks


def _check_keys(config: Mapping[str, Any], origin: str) -> None:
    for key in config:
        if key in KNOWN_KEYS:
            continue
        close = difflib.get_close_matches(str(key), KNOWN_KEYS, n=1, cutoff=0.85)
        if close:
            raise DeepSpeedConfigError(
                f"{_start(origin)} has the key {key!r}, which DeepSpeed would pass over in silence. "
                f"Did you mean {close[0]!r}?"
            )


def _check_sections(config: dict[str, Any], origin: str) -> None:
    if config.get(ZERO) is True:  # DeepSpeed's old form of stage 1
        config[ZERO] = {"stage": 1}
    for name in {place[0] for place in PLACES.values() if len(place) > 1} | {"bf16"}:
        if not isinstance(config.get(name, {}), dict):
            what = "a section with a stage (without ZeRO, use strategy='ddp')" if name == ZERO else "a section"
            raise DeepSpeedConfigError(f"{_start(origin)}: {name} is {what}, and {config[name]!r} stands there.")


def _check(config: dict[str, Any], origin: str) -> None:
    start = _start(origin)
    zero = config[ZERO]
    stage = zero["stage"]
    if stage == 0:
        raise DeepSpeedConfigError(
            f"{start} turns ZeRO off (stage 0), and without it DeepSpeed is plain data parallelism: use "
            "strategy='ddp', or stage 1, 2 or 3."
        )
    if isinstance(stage, bool) or stage not in (1, 2, 3):
        raise DeepSpeedConfigError(f"{start}: ZeRO has the stages 1, 2 and 3, and not {stage!r}.")
    if stage == 1 and zero.get("overlap_comm"):
        raise DeepSpeedConfigError(
            f"{start}: at stage 1 gradients are reduced once, at the step, so that nothing overlaps: leave "
            "overlap_comm out, or use stage 2."
        )
    if stage == 1:
        zero["overlap_comm"] = False
    if stage < 3 and zero.get("offload_param"):
        raise DeepSpeedConfigError(f"{start} offloads parameters, which only stage 3 can, and has stage {stage}.")
    if stage < 3 and get(config, (ZERO, "offload_optimizer", "device")) == "nvme":
        raise DeepSpeedConfigError(f"{start} offloads to NVMe, which only stage 3 can, and has stage {stage}.")
    if "compute_grad_norm" in zero and not zero["compute_grad_norm"] and config.get("gradient_clipping"):
        raise DeepSpeedConfigError(f"{start} has gradient_clipping, which needs zero_optimization.compute_grad_norm.")
    _check_what_poplin_decides(config, start)


def _check_what_poplin_decides(config: Mapping[str, Any], start: str) -> None:
    steps = config.get("gradient_accumulation_steps", 1)
    if steps != 1:
        raise DeepSpeedConfigError(
            f"{start} has gradient_accumulation_steps={steps!r}: DeepSpeed would divide the loss by it and step by its "
            "own counting. Your loop accumulates: call backward() as often as you like before optimizer.step(), divide "
            "the loss yourself, and leave the entry out."
        )
    for section, what in (("optimizer", "optimizer"), ("scheduler", "learning-rate scheduler")):
        if section in config:
            raise DeepSpeedConfigError(
                f"{start} has the section {section!r}. Your script makes the {what} and hands it to fabric.setup(): "
                "leave the section out."
            )
    if config.get("managed_gradient_accumulation") is False:
        raise DeepSpeedConfigError(
            f"{start}: the end of an accumulation is optimizer.step(). Leave managed_gradient_accumulation out."
        )
    parallel = max(get(config, ("tensor_parallel", "autotp_size")) or 1, config.get("sequence_parallel_size") or 1)
    if parallel > 1:
        raise DeepSpeedConfigError(
            f"{start} has tensor or sequence parallelism, and the data would not be dealt out by it. Use data "
            "parallelism with this strategy, or another strategy."
        )
    for place in ((ZERO, "zenflow"), (ZERO, "elastic_checkpoint"), ("load_universal_checkpoint",), ("amp", "enabled")):
        if get(config, place):
            raise DeepSpeedConfigError(f"{start} turns {'.'.join(place)} on, which this strategy can't serve.")


def _start(origin: str) -> str:
    return f"{origin[:1].upper()}{origin[1:]}"
