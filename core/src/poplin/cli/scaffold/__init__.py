"""``poplin plugins new``: complete packages for authors of plugins, from the templates beside."""
