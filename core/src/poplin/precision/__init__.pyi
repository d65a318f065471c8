# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.precision.dtypes import DefaultDtype as DefaultDtype
from poplin.precision.dtypes import cast_floats as cast_floats
from poplin.precision.precision import Precision as Precision
