"""docs/command-line.md tells every command and every option, and no other."""

import re
from pathlib import Path

from poplin.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def test_every_option_of_run_is_told_with_its_value():
    _, run = app._build()
    known = {
        f"{action.option_strings[0]} {action.metavar or ''}".strip()
        for action in run._actions
        if action.option_strings and action.option_strings[0].startswith("--") and "_" not in action.option_strings[0]
    }
    part = PAGE.partition("## poplin run")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(--[^`]+)` \|", part, flags=re.MULTILINE)) == known


def test_every_command_is_told():
    parser, _ = app._build()
    commands = next(action for action in parser._actions if action.dest == "command").choices
    assert set(re.findall(r"^## poplin (\w+)", PAGE, flags=re.MULTILINE)) == set(commands)
