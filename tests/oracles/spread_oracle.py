"""Every way to put cells into pods, one cell after another; shares nothing with the package but eq. 2's own formula."""

from __future__ import annotations

from collections.abc import Iterator


def least_spread(rows: int, columns: int, room: tuple[int, ...], alpha: float) -> float | None:
    """Return the least alpha * widest column + (1 - alpha) * widest row; None where nothing fits."""
    values = [
        alpha * widest_column + (1 - alpha) * widest_row for widest_column, widest_row in _all(rows, columns, room)
    ]
    return min(values, default=None)


def _all(rows: int, columns: int, room: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Spreads of all placements, but for pods of equal room, which are met in order."""
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    pods: dict[tuple[int, int], int] = {}

    def place(number: int, left: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        if number == len(cells):
            by_row = [{pods[row, column] for column in range(columns)} for row in range(rows)]
            by_column = [{pods[row, column] for row in range(rows)} for column in range(columns)]
            yield max(map(len, by_column)), max(map(len, by_row))
            return
        for pod, size in enumerate(left):
            alike = any(left[other] == room[other] == room[pod] == size for other in range(pod))
            if size and not alike:
                pods[cells[number]] = pod
                yield from place(number + 1, (*left[:pod], size - 1, *left[pod + 1 :]))

    yield from place(0, room)
