# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.precision.precision import Precision as Precision
from poplin_bitsandbytes.precision import BitsandbytesPrecision as BitsandbytesPrecision
from poplin_deepspeed.precision import DeepSpeedPrecision as DeepSpeedPrecision
from poplin_fsdp.precision import FSDPPrecision as FSDPPrecision
from poplin_precision.double import DoublePrecision as DoublePrecision
from poplin_precision.half import HalfPrecision as HalfPrecision
from poplin_precision.mixed import MixedPrecision as MixedPrecision
from poplin_tpu.precision import XLAPrecision as XLAPrecision
from poplin_transformer_engine.precision import TransformerEnginePrecision as TransformerEnginePrecision
