"""The commands for authors and for those who move: ``plugins new``, ``plugins check`` and ``migrate``."""

from __future__ import annotations

import argparse

from poplin.cli.options import Parser, add_plugin_option, positive
from poplin.errors import ArgumentValueError, MissingPackageError


def add_author_actions(actions: argparse._SubParsersAction[Parser]) -> None:
    """Add ``new`` and ``check`` to the actions of ``poplin plugins``."""
    from poplin.cli.scaffold.kinds import SUBJECTS

    new = actions.add_parser(
        "new",
        help="write a package with a plugin of your own",
        description="Write a complete package: metadata, a light plugin module, an implementation that works, tests "
        "that run the compliance suite, README and a CI workflow. It installs and passes its tests as it is.",
    )
    new.add_argument("kind", type=_kind, metavar="KIND", help=", ".join(SUBJECTS))
    new.add_argument("name", help="the name that users will write, as in Fabric(strategy=NAME)")
    new.add_option("--folder", help="where to write it (default: a new folder poplin-NAME here)")
    new.set_defaults(serve=_new)

    check = actions.add_parser(
        "check",
        help="run the compliance suite against an installed plugin",
        description="Run the compliance suite of its kind against an installed plugin, or the one that its package "
        "brings. With the name of a distribution: against all that it offers, and its packaging.",
    )
    check.add_argument("name", help="a distribution, or a name as you would give it to Fabric; kind/name works too")
    check.add_option(
        "--suite",
        metavar="MODULE:CLASS",
        help="a subclass of the suite, which knows what it needs; tests/test_it.py:CLASS works too",
    )
    check.add_option("--accelerator", metavar="NAME", help="the device that the checks run on (cpu)")
    check.add_option("--world-size", type=positive, metavar="N", help="ranks of the checks that need several (2)")
    check.add_option("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    check.set_defaults(serve=_check)
    for parser in (new, check):
        add_plugin_option(parser, "plugin_options_inner")


def add_migrate_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``poplin migrate``."""
    migrate = commands.add_parser(
        "migrate",
        help="move scripts and packages from Lightning Fabric",
        description="Rewrite the imports and registry calls of scripts for Lightning Fabric, and the entry-point "
        "groups of packages; print what is left to do, and why. A file is rewritten whole or not at all.",
    )
    migrate.add_argument("paths", nargs="+", metavar="PATH", help="files, and folders that are searched")
    migrate.add_option("--diff", action="store_true", default=False, help="print the changes, and write nothing")
    migrate.add_option(
        "--check", action="store_true", default=False, help="write nothing; exit 1 if a file would change"
    )
    add_plugin_option(migrate)
    migrate.set_defaults(serve=_migrate)


def _kind(written: str) -> str:
    """What argparse makes of KIND: a kind that isn't one is a wrong call."""
    from poplin.cli.scaffold.kinds import key_of

    try:
        return key_of(written)
    except ArgumentValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _new(options: argparse.Namespace) -> int:
    from poplin.cli.scaffold.command import new

    return new(options.kind, options.name, options.folder)


def _check(options: argparse.Namespace) -> int:
    from poplin.cli.torch_import import require_torch

    require_torch()
    from poplin.cli.check import check

    settings = {"accelerator": options.accelerator, "world_size": options.world_size}
    given = {name: value for name, value in settings.items() if value is not None}
    return check(options.name, suite=options.suite, settings=given, as_json=getattr(options, "json", False))


def _migrate(options: argparse.Namespace) -> int:
    try:
        from poplin.cli.migration.command import migrate
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "libcst":
            raise
        raise MissingPackageError(
            "poplin migrate reads sources by libcst, which is not installed. Install it: "
            'pip install "poplin-core[migrate]"'
        ) from None
    return migrate(options.paths, show_diff=options.diff, check=options.check)
