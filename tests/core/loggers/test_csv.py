"""The CSV logger: no row is lost, whatever happens."""

import argparse
import csv
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from poplin import Fabric
from poplin.errors import ArgumentTypeError, ArgumentValueError, LoggerError
from poplin.loggers import CSVLogger, Logger, to_numbers
from poplin.testing.ranks import run_ranks


def rows(logger_or_path):
    path = logger_or_path if isinstance(logger_or_path, Path) else Path(logger_or_path.log_dir) / "metrics.csv"
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_in_the_file_at_once_whatever_the_stride(tmp_path):
    logger = CSVLogger(tmp_path)
    for count, step in enumerate((0, 10, 20, 7, 7), start=1):
        logger.log_metrics({"loss": step / 10}, step=step)
        assert len(rows(logger)) == count
    assert [row["step"] for row in rows(logger)] == ["0", "10", "20", "7", "7"]
    assert logger.log_dir == str(tmp_path / "lightning_logs" / "version_0")
    assert (logger.name, logger.version, logger.root_dir) == ("lightning_logs", 0, str(tmp_path))


def test_new_columns_come_to_the_whole_file(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_metrics({"b": 2, "a": 1e-300}, step=1)
    logger.log_metrics({"c": 3}, step=2)
    assert rows(logger) == [
        {"step": "0", "a": "1.0", "b": "", "c": ""},
        {"step": "1", "a": "1e-300", "b": "2", "c": ""},
        {"step": "2", "a": "", "b": "", "c": "3"},
    ]
    assert os.listdir(logger.log_dir) == ["metrics.csv"]


def test_names_and_values_of_every_kind(tmp_path):
    logger = CSVLogger(tmp_path, prefix="train")
    names = ["with,comma", 'with"quote', "with\nnewline", "ünï\U0001f333", " space ", ""]
    logger.log_metrics({name: index for index, name in enumerate(names)})
    logger.log_metrics({"nan": math.nan, "inf": -math.inf, "pi": math.pi, "big": 2**70, "bool": True})
    logger.log_metrics({"new": torch.tensor(0.1, dtype=torch.float64)})
    first, second, third = rows(logger)
    assert [first[f"train-{name}"] for name in names] == [str(index) for index in range(6)]
    assert math.isnan(float(second["train-nan"]))
    assert float(second["train-inf"]) == -math.inf
    assert float(second["train-pi"]) == math.pi
    assert (second["train-big"], second["train-bool"]) == (str(2**70), "1")
    assert float(third["train-new"]) == 0.1
    assert [row["step"] for row in (first, second, third)] == ["0", "1", "2"]


def test_a_version_that_exists_is_continued_with_its_steps(tmp_path):
    first = CSVLogger(tmp_path, version=3)
    for _ in range(3):
        first.log_metrics({"a": 1})
    first.finalize("success")
    second = CSVLogger(tmp_path, version=3)
    second.log_metrics({"b": 2})
    second.log_metrics({"a": 2}, step=100)
    second.log_metrics({"a": 3})
    assert [row["step"] for row in rows(second)] == ["0", "1", "2", "3", "100", "101"]
    assert [row["a"] for row in rows(second)] == ["1", "1", "1", "", "2", "3"]
    assert CSVLogger(tmp_path).version == 4


def test_a_row_that_was_cut_off_is_dropped(tmp_path):
    logger = CSVLogger(tmp_path, version="x")
    logger.log_metrics({"a": 1, "b": 1})
    logger.log_metrics({"a": 2, "b": 2})
    logger.finalize("")
    path = Path(logger.log_dir) / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-2])
    CSVLogger(tmp_path, version="x").log_metrics({"a": 3, "b": 3})
    assert [(row["step"], row["b"]) for row in rows(path)] == [("0", "1"), ("1", "3")]
    path.write_bytes(b"ste")
    CSVLogger(tmp_path, version="x").log_metrics({"a": 3})
    assert rows(path) == [{"step": "0", "a": "3"}]


def test_a_process_that_is_killed_loses_no_row(tmp_path):
    script = """
        import sys, itertools
        from poplin.loggers import CSVLogger
        logger = CSVLogger(sys.argv[1], version=0)
        for step in itertools.count():
            logger.log_metrics({"loss": step, f"column {step // 50}": 1}, step=step)
            print(step, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if int(line) >= 170:
            break
    process.send_signal(signal.SIGKILL)
    told = int((line + process.stdout.read()).strip().splitlines()[-1])
    process.wait()
    process.stdout.close()
    path = tmp_path / "lightning_logs" / "version_0" / "metrics.csv"
    steps = [int(row["step"]) for row in rows(path)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= told + 1
    assert os.listdir(path.parent) == ["metrics.csv"]


def log_many(logger, count):
    for _ in range(count):
        logger.log_metrics({"a": 123456789})


def test_a_full_disk_is_told_and_leaves_whole_rows(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        logger = CSVLogger(folder)
        logger.log_metrics({"a": 1})
        (folder / "filler").write_bytes(b"x" * 48_000)
        with pytest.raises(LoggerError, match="No space left"):
            log_many(logger, 10_000)
        written = rows(logger)
        assert all(row["a"] in ("1", "123456789") for row in written)
        (folder / "filler").unlink()
        logger.log_metrics({"a": 5}, step=10**6)
        assert len(rows(logger)) == len(written) + 1
        logger.finalize("")
    finally:
        subprocess.run(["umount", folder], check=True)


def test_versions_are_taken_once_and_empty_folders_go(tmp_path):
    loggers = [CSVLogger(tmp_path) for _ in range(3)]
    assert sorted(logger.version for logger in loggers) == [0, 1, 2]
    loggers[1].log_metrics({"a": 1})
    (tmp_path / "lightning_logs" / "version_x").mkdir()
    (tmp_path / "lightning_logs" / "version_7").write_text("a file")
    assert CSVLogger(tmp_path).version == 8
    for logger in loggers:
        logger.finalize("success")
        logger.teardown()
    assert not Path(loggers[0].log_dir).exists()
    assert Path(loggers[1].log_dir).exists()
    assert CSVLogger(tmp_path, name=None, version="mine").log_dir == str(tmp_path / "mine")


def test_a_relative_folder_means_what_it_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = CSVLogger("logs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    logger.log_metrics({"a": 1})
    assert (tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv").exists()
    copy = pickle.loads(pickle.dumps(logger))
    copy.log_metrics({"a": 2})
    assert len(rows(logger)) == 2


def test_hyperparameters(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1, "nested": {"path": Path("x"), "dtype": torch.float32}, "list": (1, None)})
    logger.log_hyperparams(argparse.Namespace(tensor=torch.ones(2), function=len, big=torch.ones(1000), s={2, 1}))
    with open(Path(logger.log_dir) / "hparams.json") as file:
        params = json.load(file)
    assert params == {
        "lr": 0.1,
        "nested": {"path": "x", "dtype": "torch.float32"},
        "list": [1, None],
        "tensor": [1.0, 1.0],
        "function": "builtins.len",
        "big": "tensor of shape (1000,)",
        "s": [1, 2],
    }
    with pytest.raises(ArgumentTypeError, match="dictionary or a Namespace"):
        logger.log_hyperparams([1])


def test_what_is_not_finite_is_no_number_of_json(tmp_path):
    """``NaN`` and ``Infinity`` stood in the file, which no strict reader takes."""
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"limit": math.inf, "nested": [torch.tensor([math.nan, 1.0]), {"low": -math.inf}]})
    text = (Path(logger.log_dir) / "hparams.json").read_text()
    params = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert params == {"limit": "inf", "nested": [["nan", 1.0], {"low": "-inf"}]}
    assert float(params["limit"]) == math.inf


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"root_dir": 3}, ArgumentTypeError),
        ({"root_dir": "s3://bucket"}, ArgumentValueError),
        ({"version": 1.5}, ArgumentTypeError),
        ({"version": -1}, ArgumentValueError),
        ({"flush_logs_every_n_steps": 0}, ArgumentValueError),
        ({"flush_logs_every_n_steps": "all"}, ArgumentTypeError),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(error):
        CSVLogger(**arguments)


def test_to_numbers():
    import decimal

    import numpy

    numbers = to_numbers(
        {
            "tensor": torch.tensor([[2]]),
            "half": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
            "numpy": numpy.float32(0.25),
            "array": numpy.ones((1, 1)),
            "bool": torch.tensor(True),
            "decimal": decimal.Decimal("1.5"),
        }
    )
    assert numbers == {"tensor": 2, "half": 0.5, "numpy": 0.25, "array": 1.0, "bool": 1, "decimal": 1.5}
    assert {type(value) for value in numbers.values()} == {int, float}
    for value, error, match in [
        (torch.ones(2), ValueError, r"'bad' has the shape \(2,\).*mean"),
        (torch.empty(0), ValueError, "'bad'"),
        ("1.0", TypeError, "'bad' is a str"),
        (None, TypeError, "'bad' is a NoneType"),
        (1j, TypeError, "'bad'.*absolute"),
        (torch.tensor(1j), TypeError, "'bad'"),
        ({"x": 1}, TypeError, "bad/x"),
        (torch.ones((), device="meta"), ValueError, "meta"),
    ]:
        with pytest.raises(error, match=match):
            to_numbers({"good": 1, "bad": value})
    with pytest.raises(TypeError, match="3 is a int"):
        to_numbers({3: 1})
    with pytest.raises(TypeError, match="dictionary"):
        to_numbers([1])


def test_fabric_logs_to_several_loggers(tmp_path, monkeypatch):
    class Mine:
        seen = []

        def log_metrics(self, metrics, step=None):
            self.seen.append((metrics, step))

    monkeypatch.chdir(tmp_path)
    mine = Mine()
    with Fabric(accelerator="cpu", devices=1, loggers=["csv", CSVLogger("other"), mine]) as fabric:
        fabric.log("loss", torch.tensor(0.5), step=3)
        fabric.log_dict({"a": 1, "b": 2.0})
        with pytest.raises(ValueError, match="'bad'"):
            fabric.log("bad", torch.ones(2))
    assert mine.seen == [({"loss": 0.5}, 3), ({"a": 1, "b": 2.0}, None)]
    for path in ("lightning_logs", "other/lightning_logs"):
        assert [row["step"] for row in rows(tmp_path / path / "version_0" / "metrics.csv")] == ["3", "4"]
    with Fabric(accelerator="cpu", devices=1, loggers="csv"):
        pass
    assert [path.name for path in (tmp_path / "lightning_logs").iterdir()] == ["version_0"]


def test_a_subclass_writes_on_rank_zero_only():
    from poplin.rank_zero import rank_zero_only

    class Mine(Logger):
        seen = []

        def log_metrics(self, metrics, step=None):
            self.seen.append(metrics)

    before = rank_zero_only.rank
    rank_zero_only.rank = 1
    try:
        Mine().log_metrics({"a": 1})
        CSVLogger("/nowhere/at/all").log_metrics({"a": 1})
        assert CSVLogger("/nowhere/at/all").experiment.anything(1) is None
    finally:
        rank_zero_only.rank = before
    assert Mine.seen == []


def test_ranks_have_one_folder_and_one_version(tmp_path):
    pytest.importorskip("poplin_ddp")
    script = """
        import os, sys, time
        from poplin import Fabric
        from poplin.loggers import CSVLogger
        from poplin.testing.ranks import report
        os.chdir(sys.argv[1])
        extra = ["tensorboard"] if sys.argv[2] == "yes" else []
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", loggers=["csv", CSVLogger("other"), *extra])
        fabric.launch()
        if fabric.global_rank == 0:
            fabric.log("only_zero", 1.0, step=0)
        time.sleep(0.5 * fabric.global_rank)
        fabric.log("loss", fabric.global_rank + 0.5, step=1)
        folders = [logger.log_dir for logger in fabric.loggers]
        try:
            broken = Fabric(accelerator="cpu", devices=2, strategy="ddp", loggers=CSVLogger("/dev/null/x"))
            broken.launch()
            error = None
        except Exception as caught:
            error = [type(caught).__name__, str(caught)]
        fabric.close()
        report({"folders": folders, "error": error})
    """
    try:
        import poplin_tensorboard  # noqa: F401

        extra = "yes"
    except ImportError:
        extra = "no"
    (tmp_path / "lightning_logs" / "version_4").mkdir(parents=True)
    zero, one = run_ranks(script, world_size=2, args=[str(tmp_path), extra])
    assert zero["folders"] == one["folders"]
    assert zero["folders"][0] == str(tmp_path / "lightning_logs" / "version_5")
    assert [row["loss"] for row in rows(Path(zero["folders"][0]) / "metrics.csv")] == ["", "0.5"]
    for seen in (zero, one):
        assert seen["error"][0] == "LoggerError"
        assert "rank 0 can't make its folder in /dev/null/x" in seen["error"][1]
