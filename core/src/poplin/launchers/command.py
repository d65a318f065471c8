"""The command line that started this script, so that other ranks can be started by it too."""

from __future__ import annotations

import os
import sys

from poplin.errors import LaunchError


def script_command() -> list[str]:
    """The command that runs this script again, with the interpreter's options and the script's arguments.

    Works for ``python script.py``, ``python -m module``, ``python -c code`` and console scripts. Arguments are those of
    ``sys.argv`` as they are now.

    Raises:
        LaunchError: there is no such command: this is an interactive session, or the program came from standard input.
    """
    if not sys.executable:
        raise LaunchError(
            "The Python interpreter's path is not known (it is embedded in another program), so the other ranks can't "
            'be started. Launch a function: Fabric(strategy="..._spawn").launch(main).'
        )
    if hasattr(sys, "ps1") or bool(sys.flags.interactive):
        raise _no_command("this is an interactive session")
    options, target = _split(list(sys.orig_argv[1:]))
    if not target or target[0] == "-":
        raise _no_command("the program was read from standard input")
    if target[0] in ("-c", "-m"):
        start = target[:2]
        if len(start) < 2:
            raise _no_command("its command line can't be read")
    else:
        start = [_script_path(target[0])]
    return [sys.executable, *options, *start, *sys.argv[1:]]


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The interpreter's own options, and the rest, which begins with a script, ``-m``, ``-c`` or ``-``."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            position += 2 if word == "--check-hash-based-pycs" else 1
            continue
        # Short options can be joined: -um module, -Wignore, -cCODE
        for index, letter in enumerate(word[1:], start=1):
            if letter in "mc":
                before, value = word[:index], word[index + 1 :]
                options = arguments[:position] + ([before] if len(before) > 1 else [])
                rest = [value] if value else arguments[position + 1 : position + 2]
                return options, [f"-{letter}", *rest]
            if letter in "WX":
                position += 0 if word[index + 1 :] else 1
                break
        position += 1
    return arguments[:position], arguments[position:]


def _script_path(written: str) -> str:
    """The script's absolute path: the working directory may have changed since."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if os.path.isabs(written) or not isinstance(main, str) or not os.path.isabs(main):
        return written
    if os.path.isdir(written) or os.path.basename(main) == "__main__.py":
        return os.path.dirname(main) if os.path.basename(main) == "__main__.py" else written
    return main


def _no_command(why: str) -> LaunchError:
    return LaunchError(
        f"The other ranks are started by running this script again, and {why}: there is no script to run. Launch a "
        'function by a strategy that forks (its name ends in "_notebook" or "_fork"), or put the code into a file.'
    )
