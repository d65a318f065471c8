"""The commands, and which function serves each.

Nothing here, and nothing that it imports, imports torch or a plugin: ``poplin plugins`` is quick and works while
any of them is broken. What a command needs beyond that it imports itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence

from poplin.cli.authoring import add_author_actions, add_migrate_command
from poplin.cli.options import (
    Parser,
    RunOptions,
    add_estimate_options,
    add_launch_options,
    add_plugin_option,
    add_selection_options,
    split_at_target,
)
from poplin.errors import ArgumentValueError, PoplinError
from poplin.utilities.unwinding import let_through

#: Exit codes, as argparse and the shell have them.
OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

DESCRIPTION = """\
Your own PyTorch training loop on any hardware, with any parallelism, at any precision.
Every backend is a plugin; `poplin plugins` shows those that are installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after the program's name; those of this process by default.

    Returns:
        The exit code: 0 if it worked, 1 if it did not, 2 if it was called wrongly.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parse(words)
        _apply_plugin_options(options)
        serve: Callable[[argparse.Namespace], int] = options.serve
        with warnings.catch_warnings():
            if options.command != "run":  # there, the warnings are the script's
                warnings.showwarning = _show_warning
            code = serve(options)
        if sys.stdout is not None and not sys.stdout.closed:  # a script that was run may have closed it
            sys.stdout.flush()  # here, where a reader that has gone is no error, and not at the interpreter's exit
        return code
    except PoplinError as error:
        print(f"poplin: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is for the person at the terminal, to whom no line of ours means anything."""
    print(f"poplin: warning: {message}", file=sys.stderr)


def _parse(words: list[str]) -> argparse.Namespace:
    parser, run_parser = _build()
    target: list[str] = []
    is_module = False
    if (start := _index_of_run(words)) is not None:
        own, target, is_module = split_at_target(run_parser, words[start + 1 :])
        words = [*words[: start + 1], *own]
    options = parser.parse_args(words)
    options.target, options.is_module = target, is_module
    if options.command == "run" and not target:
        run_parser.error("say what to run: a script, or -m and a module")
    return options


def _index_of_run(words: list[str]) -> int | None:
    """Where the command ``run`` stands, if it is the command: behind options of the program only."""
    position = 0
    while position < len(words) and words[position].startswith("-"):
        position += 2 if words[position] == "-p" else 1
    return position if position < len(words) and words[position] == "run" else None


def _build() -> tuple[Parser, Parser]:
    """The parser of the program, and that of ``run``."""
    from poplin import __version__

    parser = Parser(prog="poplin", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"poplin {__version__}")
    add_plugin_option(parser, "plugin_options_before")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="run a training script, on several processes if asked",
        usage="poplin run [options] SCRIPT [arguments ...]\n       poplin run [options] -m MODULE [arguments ...]",
        description="Run a script in as many processes as there are devices. What follows SCRIPT or MODULE goes to it.",
    )
    add_selection_options(run)
    add_launch_options(run)
    run.set_defaults(serve=_run)

    _build_plugins(commands)
    add_migrate_command(commands)

    explain = commands.add_parser("explain", help="show what would be chosen for these options, and why")
    add_selection_options(explain)
    add_launch_options(explain)
    explain.set_defaults(serve=_explain)

    estimate = commands.add_parser(
        "estimate",
        help="show what a model needs in memory under each strategy, for any world size",
        description="MODEL is package.module:name or file.py:name of what makes the model when it is called. It is "
        "made on the meta device, and sharded for a world that need not be here.",
    )
    add_estimate_options(estimate)
    estimate.set_defaults(serve=_estimate)

    consolidate = commands.add_parser(
        "consolidate",
        help="make one file of a sharded checkpoint",
        description="Make one file of a folder that Poplin, Lightning or torch.distributed.checkpoint wrote. Nothing "
        "in the folder is executed.",
    )
    consolidate.add_argument("folder", help="the folder: a path or an fsspec URL")
    consolidate.add_option(
        "--output-file", metavar="FILE", help="the file; .safetensors gets that format (default: FOLDER.consolidated)"
    )
    consolidate.add_option("--key", help="only what stands under this key of the state, 'model' say")
    consolidate.add_option("--unsafe", action="store_true", default=False, help="execute what is in the folder")
    consolidate.add_option("--quiet", action="store_true", default=False, help="show no progress")
    consolidate.set_defaults(serve=_consolidate)

    doctor = commands.add_parser("doctor", help="look for what is wrong: torch, devices, plugins, metadata, ports")
    doctor.set_defaults(serve=_doctor)

    env = commands.add_parser("env", help="print versions and settings, for a bug report")
    env.set_defaults(serve=_env)

    for command in (run, explain, estimate, consolidate, doctor, env):
        add_plugin_option(command)
    return parser, run


def _build_plugins(commands: argparse._SubParsersAction[Parser]) -> None:
    plugins = commands.add_parser("plugins", help="list what the installed plugins offer")
    actions = plugins.add_subparsers(dest="action", metavar="[list | info NAME | check NAME | new KIND NAME]")
    listing = actions.add_parser("list", help="list all (the default)")
    info = actions.add_parser("info", help="show all that is known about one name, or one distribution")
    info.add_argument("name", help="a name as you would give it to Fabric; kind/name and dist:name work too")
    for parser, level in ((plugins, "outer"), (listing, "inner"), (info, "inner")):
        default = False if level == "outer" else argparse.SUPPRESS  # the inner parser must not undo the outer one
        parser.add_option("--json", action="store_true", default=default, help="print JSON")
        parser.add_option(
            "--load",
            action="store_true",
            default=default,
            help="import the plugins, and say which of them fail and why",
        )
    add_plugin_option(plugins, "plugin_options")
    add_plugin_option(listing, "plugin_options_inner")
    add_plugin_option(info, "plugin_options_inner")
    plugins.set_defaults(serve=_plugins)
    add_author_actions(actions)


def _apply_plugin_options(options: argparse.Namespace) -> None:
    """Block what ``-p no:NAME`` names, then import what ``-p MODULE`` names: blocks hold for these imports too."""
    said = [
        *options.plugin_options_before,
        *getattr(options, "plugin_options", []),
        *getattr(options, "plugin_options_inner", []),
    ]
    blocked = [name.removeprefix("no:") for name in said if name.startswith("no:")]
    options.modules = tuple(name for name in said if not name.startswith("no:"))
    if not all(blocked) or not all(options.modules):
        raise ArgumentValueError("-p needs a name: -p MODULE imports a module, -p no:NAME blocks a plugin.")
    for name in blocked:
        from poplin.registry.controls import block

        block(name)
    if options.modules and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` would; the program's own folder is no place for users' modules
    for name in options.modules:
        _import_plugin_module(name)


def _import_plugin_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:
        let_through(error)
        raise ArgumentValueError(
            f"-p {name}: the module could not be imported: {type(error).__name__}: {error}. "
            "Give the name of a module (not a path) that can be imported from this folder or is installed."
        ) from error


def run_options(options: argparse.Namespace) -> RunOptions:
    """The options of ``run``, parsed, as one immutable object."""
    return RunOptions(
        target=options.target[0],
        is_module=options.is_module,
        arguments=tuple(options.target[1:]),
        accelerator=options.accelerator,
        strategy=options.strategy,
        devices=options.devices,
        precision=options.precision,
        num_nodes=options.num_nodes,
        node_rank=options.node_rank,
        main_address=options.main_address,
        main_port=options.main_port,
        max_restarts=options.max_restarts,
        grace=options.grace,
        torch_autoload=not options.no_torch_autoload,
        modules=options.modules,
    )


def _run(options: argparse.Namespace) -> int:
    from poplin.cli.names import check_names
    from poplin.cli.torch_import import require_torch

    check_names(options.accelerator, options.strategy, options.precision)
    require_torch()
    from poplin.cli.run import run_script

    return run_script(run_options(options))


def _consolidate(options: argparse.Namespace) -> int:
    from poplin.cli.consolidate import consolidate

    return consolidate(options)


def _plugins(options: argparse.Namespace) -> int:
    from poplin.cli import plugins

    if options.action == "info":
        return plugins.info(options.name, load=options.load, as_json=options.json)
    return plugins.listing(load=options.load, as_json=options.json)


def _explain(options: argparse.Namespace) -> int:
    from poplin.cli.explain import explain

    return explain(options)


def _estimate(options: argparse.Namespace) -> int:
    from poplin.cli.estimate import estimate

    return estimate(options)


def _doctor(options: argparse.Namespace) -> int:
    from poplin.cli.doctor import doctor

    return doctor(options.modules)


def _env(options: argparse.Namespace) -> int:
    from poplin.cli.environment import print_environment

    return print_environment()
