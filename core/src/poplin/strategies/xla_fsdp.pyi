# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin_tpu.fsdp import XLAFSDPStrategy as XLAFSDPStrategy
