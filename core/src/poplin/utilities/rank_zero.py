"""A lazy face: ``rank_zero_*`` under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["rank_zero_deprecation", "rank_zero_info", "rank_zero_only", "rank_zero_warn"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        name: f"poplin.rank_zero:{name}"
        for name in ("rank_zero_debug", "rank_zero_deprecation", "rank_zero_info", "rank_zero_only", "rank_zero_warn")
    },
)
