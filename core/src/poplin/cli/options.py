"""What can be said on the command line, and how it is read.

Long options can be written with hyphens or underscores. ``-p`` stands before or after the command's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: How long the processes of a run have, after SIGTERM, until they are killed.
DEFAULT_GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class RunOptions:
    """``poplin run`` as it was written. None means: not said, so what the script says counts."""

    #: The script's path, or the module's name.
    target: str
    #: Whether ``target`` is the name of a module (``-m``).
    is_module: bool = False
    #: What followed the target, untouched.
    arguments: tuple[str, ...] = ()
    accelerator: str | None = None
    strategy: str | None = None
    devices: str | None = None
    precision: str | None = None
    num_nodes: int = 1
    node_rank: int = 0
    main_address: str = "127.0.0.1"
    #: None: a free port where there is one node.
    main_port: int | None = None
    max_restarts: int = 0
    #: Seconds between SIGTERM and SIGKILL.
    grace: float = DEFAULT_GRACE_SECONDS
    #: Whether ``import torch`` may load the backends of other packages.
    torch_autoload: bool = True
    #: Modules that register plugins, to be imported in each process before the script runs.
    modules: tuple[str, ...] = ()


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations: ``--dev`` may mean another thing in the next version."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def add_option(self, name: str, **settings: Any) -> None:
        """Add a long option; its spelling with underscores is understood too, and not shown in the help."""
        self.add_argument(name, **settings)
        if "-" in name[2:]:
            hidden = {**settings, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            self.add_argument("--" + name[2:].replace("-", "_"), dest=name[2:].replace("-", "_"), **hidden)


def add_plugin_option(parser: argparse.ArgumentParser, dest: str = "plugin_options") -> None:
    """Add ``-p``; each parser of a chain needs its own ``dest``, or the inner one's would replace the outer one's."""
    parser.add_argument(
        "-p",
        dest=dest,
        action="append",
        default=[],
        metavar="NAME",
        help="import the module NAME, which registers plugins; no:NAME blocks a plugin. Can be given several times",
    )


def add_selection_options(parser: Parser) -> None:
    """Add the options that say what a run consists of."""
    parser.add_option("--accelerator", metavar="NAME", help="which kind of device: a name, 'gpu' or 'auto'")
    parser.add_option("--strategy", metavar="NAME", help="how the processes work together")
    parser.add_option("--devices", metavar="N", help="how many devices on each node (2, auto, -1), or which (0,1)")
    parser.add_option("--num-nodes", type=positive, default=1, metavar="N", help="number of machines (1)")
    parser.add_option("--precision", metavar="NAME", help="number format, as in 32-true or bf16-mixed")


def add_launch_options(parser: Parser) -> None:
    """Add the options that say how the processes are started."""
    parser.add_option("--node-rank", type=natural, default=0, metavar="N", help="which of the machines this is (0)")
    parser.add_option("--main-address", default="127.0.0.1", metavar="HOST", help="address of machine 0 (127.0.0.1)")
    parser.add_option(
        "--main-port", type=port, default=None, metavar="PORT", help="port there (one machine: a free one)"
    )
    parser.add_option(
        "--max-restarts",
        type=natural,
        default=0,
        metavar="N",
        help="start all ranks again, N times at most, when one fails (0)",
    )
    parser.add_option(
        "--grace",
        type=seconds,
        default=DEFAULT_GRACE_SECONDS,
        metavar="SECONDS",
        help=f"time to clean up between SIGTERM and SIGKILL ({DEFAULT_GRACE_SECONDS:g})",
    )
    parser.add_option(
        "--no-torch-autoload",
        action="store_true",
        help="keep `import torch` from loading the backends of other packages (torch.backends entry points)",
    )


def add_estimate_options(parser: Parser) -> None:
    """Add the models to be planned, and the runs that they are planned for."""
    parser.add_argument("model", nargs="+", metavar="MODEL", help="package.module:name, or file.py:name")
    parser.add_option(
        "--world-size", type=positive_list, default=(1, 8), metavar="N,...", help="numbers of processes (1,8)"
    )
    parser.add_option(
        "--devices-per-node", type=positive, default=8, metavar="N", help="how many devices a machine has (8)"
    )
    parser.add_option(
        "--strategy", action="append", metavar="NAME", help="only this strategy; can be given several times"
    )
    parser.add_option("--precision", metavar="NAME", help="number format, as in 32-true or bf16-mixed")
    parser.add_option(
        "--optimizer",
        default="torch.optim:AdamW",
        metavar="NAME",
        help="what makes the optimizer of a list of parameters (torch.optim:AdamW), or none",
    )
    parser.add_option("--json", action="store_true", help="print JSON, in bytes")


def natural(text: str) -> int:
    """An integer that is not negative."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; it must be 0 or more")
    return number


def positive(text: str) -> int:
    """An integer above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; it must be 1 or more")
    return number


def positive_list(text: str) -> tuple[int, ...]:
    """Integers above zero, separated by commas."""
    return tuple(positive(part) for part in text.split(","))


def port(text: str) -> int:
    """A port number."""
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port; ports are 1 to 65535")
    return number


def seconds(text: str) -> float:
    """A time in seconds that is not negative."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time; write seconds, 0 or more")
    return number


def split_at_target(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Part the words after ``run`` into our options and the script's own.

    argparse would look into what follows the script too (and swallow a ``--`` there), so the script is found first.

    Args:
        parser: the parser of ``run``; it knows which options take a value.
        words: what follows ``run``.

    Returns:
        Our options; the target and what follows it (empty if there is none); whether the target is a module.
    """
    takes_value = {
        option
        for action in parser._actions  # argparse has no public way to ask
        if action.nargs != 0
        for option in action.option_strings
    }
    position = 0
    while position < len(words):
        word = words[position]
        if word == "-m":
            return list(words[:position]), list(words[position + 1 :]), True
        if word == "--":
            return list(words[:position]), list(words[position + 1 :]), False
        if not word.startswith("-") or word == "-":
            return list(words[:position]), list(words[position:]), False
        position += 2 if word in takes_value else 1
    return list(words), [], False
