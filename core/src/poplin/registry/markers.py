"""The two markers of pluggy, under Poplin's project name."""

from __future__ import annotations

import pluggy

PROJECT = "poplin"
#: Marks a function of a plugin as the implementation of a hook.
hookimpl = pluggy.HookimplMarker(PROJECT)
#: Marks the specification of a hook; only ``hookspecs.py`` uses it.
hookspec = pluggy.HookspecMarker(PROJECT)
