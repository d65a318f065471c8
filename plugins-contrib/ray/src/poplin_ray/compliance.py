"""The compliance suite of the launcher, on a local Ray that it starts."""

from __future__ import annotations

from poplin.testing import LauncherCompliance


class RayCompliance(LauncherCompliance):
    """Ray takes its time to come and to go."""

    name = "ray"
    limit = 240
    # Ray's own daemons look now and then whether those that started them live, and its agent may then try for 60 s to
    # tell a control store that is gone, too
    patience = 150
