"""What the arena costs: measured rows with their targets, for `bandscope bench`."""
