"""``poplin migrate``: scripts and packages for Lightning Fabric become ones for Poplin."""
