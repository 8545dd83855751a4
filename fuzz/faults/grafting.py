"""Group cache: window rows that come back to the prefix cache (grafts) in a wrong way."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Edit, Fault, edited


def _fault(name: str, what: str, *edits: Edit) -> Fault:
    return Fault(name, "cache", 'docs/prefix.md, "Publishing"', what, edited(*edits))


FAULTS = (
    _fault(
        "graft-not-done",
        "The cache counts window rows as its own again that are bound to the request's page still.",
        (
            "cache_handlers._insert",
            "books.graft(books.bands[window], virtual, into, request)",
            "pass",
        ),
    ),
    _fault(
        "graft-without-renaming-writes",
        "Compaction may move a grafted page while a forward in flight writes it under its old name.",
        ("books.Books.graft", "self.tickets.rename(band.index, virtual, into)", "pass"),
    ),
    _fault(
        "grafts-a-page-too-far",
        "The first window page that the cache still has is grafted over as well, and its place is lost.",
        (
            "prefix_insert.insert",
            "grafts[window].append((mine[start:first], node.pages[start:first]))",
            "grafts[window].append((mine[start : first + 1], node.pages[start : first + 1]))",
        ),
    ),
    _fault(
        "grafts-a-page-short",
        "Of the rows that come back one stays with the request, though the cache counts it.",
        (
            "prefix_insert.insert",
            "grafts[window].append((mine[start:first], node.pages[start:first]))",
            "grafts[window].append((mine[start + 1 : first], node.pages[start + 1 : first]))",
        ),
    ),
    _fault(
        "grafts-rows-that-were-trimmed",
        "A copy counts as having all window rows, also those that its request has trimmed.",
        (
            "prefix_insert._own_starts",
            "min(max(first_own, start - node.start), len(node))",
            "min(first_own + 0 * start, len(node))",
        ),
    ),
    _fault(
        "grafts-only-where-nobody-holds",
        "Rows do not come back to a prefix that is in use, so nobody ever matches it again.",
        ("prefix_insert.insert", "if start < first:", "if start < first and not node.locks:"),
        (
            "prefix_insert.insert",
            "present.append(other >= max(start, first))",
            "present.append(other >= (start if node.locks else max(start, first)))",
        ),
        (
            "prefix_insert.insert",
            "_graft(tree, node, starts, clock)",
            "node.locks or _graft(tree, node, starts, clock)",
        ),
    ),
    _fault(
        "graft-is-no-use",
        "Rows that were computed again count as used when they were lost, and are evicted first.",
        ("prefix_insert._graft", "node.window_clock[window] = clock", "pass"),
    ),
    _fault(
        "grafted-rows-freed",
        "Rows that came back to the cache are freed as those of the request's copy.",
        (
            "prefix_insert.insert",
            "present.append(other >= max(start, first))",
            "present.append(other >= start)",
        ),
    ),
    _fault(
        "graft-not-published",
        "The device's table does not learn where the cache's page lies since the graft.",
        (
            "tables.PageTable.rename",
            "self.bind(into, places)",
            "self.place_of[into], self.virtual_at[places] = places, into",
        ),
    ),
    _fault(
        "grafted-page-stays-mapped",
        "After a graft the request's old page is said to lie where the cache's page lies.",
        ("tables.PageTable.rename", "self.place_of[virtual] = UNMAPPED", "pass"),
    ),
)
