"""`bandscope inspect`: everything that can be asked of a trace. One module per group of commands."""
