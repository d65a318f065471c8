# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.wrappers.dataloader import FabricDataLoader as FabricDataLoader
from poplin.wrappers.dataloader import FabricDataLoader as _FabricDataLoader
from poplin.wrappers.dispatch import MethodDispatch as MethodDispatch
from poplin.wrappers.module import FabricModule as FabricModule
from poplin.wrappers.module import FabricModule as _FabricModule
from poplin.wrappers.optimizer import FabricOptimizer as FabricOptimizer
from poplin.wrappers.optimizer import FabricOptimizer as _FabricOptimizer
from poplin.wrappers.unwrapping import is_wrapped as is_wrapped
from poplin.wrappers.unwrapping import unwrap as unwrap
