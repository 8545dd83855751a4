"""The live screen: a reading worker makes snapshots, and the screen is a function of the latest."""
