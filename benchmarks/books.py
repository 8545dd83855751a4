"""The cost of the arena's bookkeeping on this machine: `python benchmarks/books.py`.

The rows live in `bandscope.fuzz.bench`; `bandscope bench` prints these and, on a GPU, the others.
"""

from bandscope.tui.commands.bench import bench

if __name__ == "__main__":
    bench(part="books", as_json=False)
