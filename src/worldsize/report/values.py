"""Values from records, and how they are written for people."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

# Beyond this a value is treated as infinite, so that differences of two values stay finite.
_LARGEST = 1e150


def number(value: object) -> float:
    """A number from a record; NaN for whatever is none.

    >>> number(3), number("0.5"), number(None), number(True)
    (3.0, 0.5, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def drawable(value: float) -> bool:
    """Whether a value has a place in a chart."""
    return math.isfinite(value) and abs(value) < _LARGEST


def part(record: object, *keys: str) -> Any:
    """What lies under these keys, one inside the other; None where one is missing."""
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def entries(value: object) -> list[dict[str, Any]]:
    """The records of a list; an empty list for whatever is none."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def written(value: object, digits: int = 3) -> str:
    """A number to this many significant digits; whole numbers in full, with thousands set apart.

    >>> written(0.87142), written(24410), written(1.5e-7), written(4235.7), written(float("nan")), written(999.6)
    ('0.871', '24,410', '1.5e-07', '4,236', 'not a number', '1,000')
    """
    found = number(value)
    if math.isnan(found):
        return "not a number"
    if math.isinf(found):
        return "infinite" if found > 0 else "minus infinite"
    if found == int(found) and abs(found) < 1e15:
        return f"{int(found):,}"
    if 10**digits - 0.5 <= abs(found) < 1e15:
        return f"{found:,.0f}"
    return f"{found:.{digits}g}"


def exact(value: float, digits: int = 6) -> str:
    """A number for a table: no thousands set apart, so that it can be copied.

    >>> exact(40000.0), exact(0.1234567), exact(float("inf"))
    ('40000', '0.123457', 'infinite')
    """
    if drawable(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.{digits}g}"
    return written(value)


def fixed(value: object, decimals: int) -> str:
    """A number with this many decimals, or words where there is none.

    >>> fixed(1.8, 2), fixed(None, 2)
    ('1.80', 'not known')
    """
    found = number(value)
    return f"{found:,.{decimals}f}" if drawable(found) else "not known" if math.isnan(found) else written(found)


def percent(value: object) -> str:
    """A share as a percentage.

    >>> percent(0.954), percent(0.125)
    ('95 %', '12.5 %')
    """
    found = number(value) * 100
    if not drawable(found):
        return "not known"
    return f"{found:.1f} %" if found < 20 and round(found, 1) != round(found) else f"{found:.0f} %"


def duration(value: object) -> str:
    """Seconds in the unit that suits them.

    >>> duration(0.0851), duration(14.2), duration(205), duration(7325), duration(5e-5), duration(0.9996)
    ('85.1 ms', '14.2 s', '3 min 25 s', '2 h 2 min', '50 µs', '1.0 s')
    """
    found = number(value)
    if not drawable(found):
        return "not known"
    if found < 0:
        return f"-{duration(-found)}"
    if found < 0.9995e-3:
        return f"{found * 1e6:.3g} µs"
    if found < 0.9995:
        return f"{found * 1e3:.3g} ms"
    if found < 120:
        return f"{found:.1f} s"
    whole = round(found)
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(value: object, thing: str) -> str:
    """A count with its noun.

    >>> counted(1, "worker"), counted(12000, "step")
    ('1 worker', '12,000 steps')
    """
    return f"{written(value)} {thing}{'' if number(value) == 1 else 's'}"


def moment(value: object) -> str:
    """A date and time of the records, to the minute; as it stands where it is not ISO 8601.

    >>> moment("2026-11-18T21:00:07"), moment("today"), moment(None)
    ('2026-11-18 21:00', 'today', 'not known')
    """
    if not value:
        return "not known"
    try:
        return datetime.fromisoformat(str(value)).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return str(value)
