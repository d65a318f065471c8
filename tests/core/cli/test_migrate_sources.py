"""Sources: every form of import and use, and what is said about what can't be moved."""

import textwrap

import pytest

from poplin.cli.migration.findings import SourceError
from poplin.cli.migration.source import migrate_source

#: source → what it becomes; nothing is left to say.
MOVED = {
    "import lightning.fabric\nx = lightning.fabric.Fabric()": "import poplin\nx = poplin.Fabric()",
    "import lightning as L\nx: L.Fabric": "import poplin as L\nx: L.Fabric",
    "import lightning as L\nL.fabric.loggers.CSVLogger": (
        "import poplin as L\nimport poplin.loggers\nL.loggers.CSVLogger"
    ),
    "import lightning.fabric as F\nF.is_wrapped": "import poplin as F\nF.is_wrapped",
    "import os, lightning.fabric.strategies.ddp as d\nd.DDPStrategy": (
        "import os, poplin.strategies.ddp as d\nd.DDPStrategy"
    ),
    "import lightning.fabric.strategies\nlightning.fabric.strategies.FSDPStrategy()": (
        "import poplin.strategies\npoplin.strategies.FSDPStrategy()"
    ),
    "from lightning import Fabric, seed_everything": "from poplin import Fabric, seed_everything",
    "from lightning import fabric\nfabric.Fabric()": "import poplin as fabric\nfabric.Fabric()",
    "from lightning.fabric import strategies as s\ns.DDPStrategy": (
        "from poplin import strategies as s\ns.DDPStrategy"
    ),
    "from lightning_fabric.plugins.collectives.torch_collective import TorchCollective as C": (
        "from poplin.plugins.collectives import TorchCollective as C"
    ),
    "from lightning.fabric.utilities.types import _Stateful": (
        "from poplin.utilities.types import Stateful as _Stateful"
    ),
    "from lightning.fabric.utilities.rank_zero import rank_zero_only, WarningCache  # both": (
        "from poplin.utilities.rank_zero import rank_zero_only  # both\n"
        "from lightning_utilities.core.rank_zero import WarningCache"
    ),
    "import lightning_fabric as lf\nlf.utilities.types.ProcessGroup": (
        "import poplin as lf\nimport torch.distributed\ntorch.distributed.ProcessGroup"
    ),
    "if True: import lightning.fabric.loggers as l; l.Logger": "if True: import poplin.loggers as l; l.Logger",
    "try:\n    import lightning as L\nexcept ImportError:\n    import lightning_fabric as L\nL.Fabric()": (
        "try:\n    import poplin as L\nexcept ImportError:\n    import poplin as L\nL.Fabric()"
    ),
    # the import of another function may bind the same name
    "def f():\n    import lightning as L\n    L.Fabric\ndef g():\n    import lightning as L\n    L.fabric.loggers.Logger": (  # noqa: E501
        "def f():\n    import poplin as L\n    import poplin.loggers\n    L.Fabric\n"
        "def g():\n    import poplin as L\n    import poplin.loggers\n    L.loggers.Logger"
    ),
    # one name, two modules
    "from lightning.fabric import loggers as m\nm.Logger\nfrom lightning.fabric import wrappers as m\nm.is_wrapped": (
        "from poplin import loggers as m\nm.Logger\nfrom poplin import wrappers as m\nm.is_wrapped"
    ),
    # what only looks like a use
    "import lightning as L\nL.Fabric\ndef f(L):\n    return L.fabric.loggers": (
        "import poplin as L\nL.Fabric\ndef f(L):\n    return L.fabric.loggers"
    ),
    'import lightning as L\ndef f(x: "L.fabric.loggers.Logger | None") -> L.Fabric: ...': (
        'import poplin as L\ndef f(x: "L.loggers.Logger | None") -> L.Fabric: ...'
    ),
    'import importlib\nm = importlib.import_module("lightning.fabric")': (
        'import importlib\nm = importlib.import_module("poplin")'
    ),
    "target = {'_target_': 'lightning.fabric.strategies.DDPStrategy'}": (
        "target = {'_target_': 'poplin.strategies.DDPStrategy'}"
    ),
    'entry_points={"lightning.fabric.callbacks_factory": ["a = b:c"]}': (
        'entry_points={"poplin.callbacks_factory": ["a = b:c"]}'
    ),
    # registries
    "from lightning.fabric.strategies import STRATEGY_REGISTRY\nSTRATEGY_REGISTRY.register('m', M, 'text', True, a=1)": (  # noqa: E501
        "import poplin\npoplin.register(\"strategies\", 'm', M, description='text', override=True, a=1)"
    ),
    "from lightning.fabric.accelerators import ACCELERATOR_REGISTRY as R\n@R.register('m', description='d')\nclass M: ...": (  # noqa: E501
        "import poplin\n@poplin.register(\"accelerators\", 'm', description='d')\nclass M: ..."
    ),
    "from lightning.fabric.strategies import STRATEGY_REGISTRY as R\nR.register('m', strategy=M)\nR.get('m')": (
        "from poplin.strategies import STRATEGY_REGISTRY as R\nimport poplin\n"
        "poplin.register(\"strategies\", 'm', target=M)\nR.get('m')"
    ),
    "import lightning as L\nL.fabric.strategies.STRATEGY_REGISTRY.register('m', L.fabric.strategies.Strategy)": (
        "import poplin as L\nimport poplin.strategies\npoplin.register(\"strategies\", 'm', L.strategies.Strategy)"
    ),
    # a setting of the class that poplin.register would take for its own: the view of the registry serves it
    "from lightning.fabric.strategies import STRATEGY_REGISTRY\nSTRATEGY_REGISTRY.register('m', M, kind=1)": (
        "from poplin.strategies import STRATEGY_REGISTRY\nSTRATEGY_REGISTRY.register('m', M, kind=1)"
    ),
}

#: source → (what it becomes, a part of each remark).
LEFT = {
    "from lightning.fabric.utilities import LightningEnum, rank_zero_info": (
        "from lightning.fabric.utilities import LightningEnum\nfrom poplin.utilities import rank_zero_info",
        ["StrEnum"],
    ),
    "from lightning import Fabric, LightningModule": (
        "from lightning import LightningModule\nfrom poplin import Fabric",
        ["no part of Fabric"],
    ),
    "import lightning as L\nL.Fabric()\nL.Trainer()": (
        "import lightning as L\nimport poplin\npoplin.Fabric()\nL.Trainer()",
        ["lightning.Trainer: it is no part of Fabric"],
    ),
    "import lightning as L\nuse(L)\nL.Fabric": (
        "import lightning as L\nimport poplin\nuse(L)\npoplin.Fabric",
        ["used as a value"],
    ),
    "import lightning.fabric.utilities.cloud_io\nlightning.fabric.utilities.cloud_io.get_filesystem": (
        None,
        ["fsspec", "fsspec"],
    ),
    "from lightning.fabric.strategies import DDPStratgy": (None, ["it has DDPStrategy"]),
    "from lightning.fabric.wrappers import _unwrap_objects": (None, ["private"]),
    "from lightning.fabric.strategies import *\nDDPStrategy(), FSDPStrategy()": (
        "from poplin.strategies import DDPStrategy, FSDPStrategy\nDDPStrategy(), FSDPStrategy()",
        ["check it"],
    ),
    "from lightning.fabric.strategies import *": (None, ["nothing of it is used"]),
    "from lightning.fabric import Fabric\npoplin = 3\nprint(poplin)": (None, ["rename it"]),
    "x = 'lightning.fabric'\nlogging.getLogger('lightning.fabric')": (
        None,
        ["left as it is", "no logger of this name"],
    ),
    "code = 'from lightning.fabric import Fabric; Fabric()'": (None, ["a string mentions"]),
    "from lightning.fabric import Fabric\nf = Fabric()\nf._strategy, f._connector": (
        "from poplin import Fabric\nf = Fabric()\nf._strategy, f._connector",
        ["use f.strategy", "fabric.explain()"],
    ),
    "from lightning.fabric.accelerators import Accelerator\nclass A(Accelerator):\n    def register_accelerators(r): ...": (  # noqa: E501
        "from poplin.accelerators import Accelerator\nclass A(Accelerator):\n    def register_accelerators(r): ...",
        ["device_type", "nobody calls register_accelerators"],
    ),
    "import lightning.pytorch as pl\npl.Trainer()": (None, ["no part of Fabric"]),
}

UNTOUCHED = [
    "import lightning.pytorch as pl",
    "from .lightning import fabric",
    "from lightning_utilities import apply_to_collection",
    "'''Docs of lightning.fabric.'''\nx = 'lightning is fast'",
    "import lightning  # for its side effects",
]


def migrated(source):
    result = migrate_source(source.encode())
    again = migrate_source(result.source)
    assert again.source == result.source  # running it again changes nothing
    return result.source.decode(), [remark.text for remark in result.remarks]


@pytest.mark.parametrize("source", MOVED)
def test_it_moves(source):
    text, remarks = migrated(source + "\n")
    assert text == MOVED[source] + "\n"
    assert remarks == []
    compile(text, "moved", "exec")


@pytest.mark.parametrize("source", LEFT)
def test_it_says_what_it_leaves_and_why(source):
    expected, reasons = LEFT[source]
    text, remarks = migrated(source + "\n")
    assert text == (expected or source) + "\n"
    assert len(remarks) == len(reasons)
    for reason in reasons:
        assert any(reason in remark for remark in remarks), remarks


@pytest.mark.parametrize("source", UNTOUCHED)
def test_it_leaves_what_is_not_about_fabric(source):
    assert migrated(source) == (source, [])


def test_formatting_and_comments_stay():
    source = textwrap.dedent("""\
        #!/usr/bin/env python
        from lightning.fabric import (  # first
            Fabric,  # second

            seed_everything as seed,
        )   # third
        from lightning.fabric.utilities import (
            LightningEnum,
            rank_zero_only,  # fourth
        )
        fabric = Fabric( accelerator = "cpu",
                         devices=1, )
        """)
    text, _ = migrated(source)
    assert text == source.replace("lightning.fabric import (  #", "poplin import (  #").replace(
        "    rank_zero_only,  # fourth\n)\n", ")\nfrom poplin.utilities import rank_zero_only  # fourth\n"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"import lightning as L\r\nx = L.Fabric()\r\n",
        b"import lightning as L\nx = L.Fabric()  # no line end",
        b"\xef\xbb\xbfimport lightning as L\nx = L.Fabric()\n",
        "# -*- coding: latin-1 -*-\nimport lightning as L\nx = L.Fabric()  # caf\xe9\n".encode("latin-1"),
        b"import lightning as L\n\x0c\nif x:\n\tL.Fabric()\n",
        b"import lightning as L\nx = L.Fabric()\r\ny = 1\n",
    ],
    ids=["crlf", "no-end", "bom", "latin-1", "form-feed-and-tabs", "mixed"],
)
def test_every_other_byte_stays(raw):
    assert migrate_source(raw).source == raw.replace(b"lightning", b"poplin")


@pytest.mark.parametrize("raw", [b"from lightning import (\n", b"print 'lightning'\n", b"# lightning \xff\xfe\n"])
def test_what_is_no_python_is_an_error(raw):
    with pytest.raises(SourceError):
        migrate_source(raw)
