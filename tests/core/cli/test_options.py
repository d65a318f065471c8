"""How the words of a command line are read."""

import pytest

from poplin.cli import app
from poplin.cli.options import RunOptions


def read(*words):
    """What ``poplin run`` would be asked to do."""
    options = app._parse(list(words))
    options.modules = ()
    return app.run_options(options)


def test_nothing_but_a_script():
    assert read("run", "train.py") == RunOptions(target="train.py")


def test_every_option_of_run():
    assert read(
        *("run", "--accelerator", "cpu", "--strategy", "acme", "--devices", "0,1", "--num-nodes", "2"),
        *("--node-rank", "1", "--main-address", "host", "--main-port", "2000", "--precision", "16-mixed"),
        *("--max-restarts", "3", "--grace", "1.5", "--no-torch-autoload", "train.py"),
    ) == RunOptions(
        target="train.py",
        accelerator="cpu",
        strategy="acme",
        devices="0,1",
        num_nodes=2,
        node_rank=1,
        main_address="host",
        main_port=2000,
        precision="16-mixed",
        max_restarts=3,
        grace=1.5,
        torch_autoload=False,
    )


def test_underscores_are_as_good_as_hyphens():
    words = (
        "--num{0}nodes=2 --node{0}rank=1 --main{0}address=a --main{0}port=5 --max{0}restarts=1 --no{0}torch{0}autoload"
    )
    assert read("run", *words.format("-").split(), "x.py") == read("run", *words.format("_").split(), "x.py")


@pytest.mark.parametrize(
    "rest",
    [["--devices", "9"], ["--", "--x"], ["-m", "mod"], ["-p", "no:x"], ["run", "plugins"], ["--help"], ["--", "--"]],
)
def test_what_follows_the_script_is_the_scripts(rest):
    assert read("run", "--devices", "2", "train.py", *rest) == RunOptions(
        target="train.py", devices="2", arguments=tuple(rest)
    )


def test_a_module_with_its_arguments():
    assert read("run", "--devices=2", "-m", "package.train", "--devices", "3", "-m") == RunOptions(
        target="package.train", is_module=True, devices="2", arguments=("--devices", "3", "-m")
    )


def test_a_script_behind_two_hyphens_may_start_with_one():
    assert read("run", "--", "-odd.py", "-x").target == "-odd.py"


def test_the_plugin_option_may_stand_before_or_after_the_command():
    options = app._parse(["-p", "first", "run", "-p", "no:second", "-pno:third", "train.py", "-p", "fourth"])
    assert [*options.plugin_options_before, *options.plugin_options] == ["first", "no:second", "no:third"]
    assert options.target == ["train.py", "-p", "fourth"]


@pytest.mark.parametrize("words", [["plugins", "--json", "list"], ["plugins", "list", "--json"], ["plugins", "--json"]])
def test_options_of_plugins_may_stand_anywhere(words):
    assert app._parse(words).json is True


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run"],
        ["run", "-m"],
        ["run", "--devices"],
        ["run", "--num-nodes", "0", "x.py"],
        ["run", "--node-rank=-1", "x.py"],
        ["run", "--main-port", "70000", "x.py"],
        ["run", "--grace", "-1", "x.py"],
        ["run", "--grace", "inf", "x.py"],
        ["run", "--dev", "2", "x.py"],
        ["plugins", "info"],
        ["nonsense"],
    ],
)
def test_a_wrong_call_is_refused_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        app._parse(words)
    assert stopped.value.code == 2
    assert "usage: poplin" in capsys.readouterr().err
