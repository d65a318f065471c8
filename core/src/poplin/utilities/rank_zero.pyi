# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.rank_zero import rank_zero_debug as rank_zero_debug
from poplin.rank_zero import rank_zero_deprecation as rank_zero_deprecation
from poplin.rank_zero import rank_zero_info as rank_zero_info
from poplin.rank_zero import rank_zero_only as rank_zero_only
from poplin.rank_zero import rank_zero_warn as rank_zero_warn
