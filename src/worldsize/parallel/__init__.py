"""Everything that touches a process group: the world and the sync of gradients."""
