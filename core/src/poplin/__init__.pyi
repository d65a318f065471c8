# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.fabric import Fabric as Fabric
from poplin.registry import hookimpl as hookimpl
from poplin.registry import lazy as lazy
from poplin.registry import register as register
from poplin.seed import seed_everything_without_workers as seed_everything
from poplin.utilities.warnings import disable_possible_user_warnings as disable_possible_user_warnings
from poplin.wrappers import is_wrapped as is_wrapped

__version__: str
