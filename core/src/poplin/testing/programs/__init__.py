"""Scripts that the checks run: as scripts, so that no module stands beside them."""
