"""The commands under `bandscope fuzz`, one module per group of them."""
