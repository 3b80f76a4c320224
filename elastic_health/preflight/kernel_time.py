"""The time of a kernel log line, in whatever form the reader of the log printed it.

Forms: dmesg (seconds since boot), `dmesg -T`, `dmesg --time-format iso`, /dev/kmsg (µs since boot), journalctl `short`, `short-iso`,
`short-precise`, `short-full`, `short-unix`, `short-monotonic`, syslog.
Law: an instant is given only where the line (with what the caller knows) fixes it; a local time without its zone does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

_MONTHS = tuple("jan feb mar apr may jun jul aug sep oct nov dec".split())
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_I = re.IGNORECASE
_KMSG = re.compile(r"\b(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;\s]{0,80};")
_ISO = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|GMT)\b|([+-]\d\d):?(\d\d)\b)?", _I)
_CTIME = re.compile(_MONTH + r" {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (?:(UTC|GMT) )?(\d{4})\b", _I)
_SYSLOG = re.compile(_MONTH + r" {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", _I)
_UNIX = re.compile(r"(?:^|\s)(\d{9,11}\.\d{1,9})\s")
_UPTIME = re.compile(r"\[ {0,8}(\d{1,10}\.\d{1,9})\]")


@dataclass(frozen=True)
class Clocks:
    """What the caller knows of the machine that wrote the log; None where it doesn't.

    Attributes:
        boot: seconds since the epoch at boot, for lines that count from boot.
        utc_offset_s: of its local time, for lines without a zone.
        year: for lines without one.
    """

    boot: float | None = None
    utc_offset_s: float | None = None
    year: int | None = None


@dataclass(frozen=True)
class Stamp:
    """When a message was written.

    Attributes:
        text: as printed, "" for none.
        epoch: seconds since the epoch, None where it can't be known.
        uptime_s: seconds since boot, None where the line doesn't say.
    """

    text: str = ""
    epoch: float | None = None
    uptime_s: float | None = None


def stamp_of(prefix: str, clocks: Clocks = Clocks()) -> Stamp:
    """The time in what stands before a kernel message."""
    uptime, text = _uptime(prefix)
    wall = _wall(prefix, clocks)
    if wall is not None:
        return Stamp(wall.text, wall.epoch, uptime)
    if uptime is None:
        return Stamp()
    return Stamp(text, None if clocks.boot is None else clocks.boot + uptime, uptime)


def _uptime(prefix: str) -> tuple[float | None, str]:
    if found := _KMSG.search(prefix):
        return int(found.group(3)) / 1e6, found.group(3)
    if found := _UPTIME.search(prefix):
        return float(found.group(1)), found.group(1)
    return None, ""


def _wall(prefix: str, clocks: Clocks) -> Stamp | None:
    if found := _ISO.search(prefix):
        year, month, day, hour, minute, second, part, utc, zone_h, zone_m = found.groups()
        offset = 0.0 if utc else _offset(zone_h, zone_m) if zone_h else clocks.utc_offset_s
        return _made(found.group(0), (int(year), int(month), int(day), int(hour), int(minute), int(second)), part, offset)
    if found := _CTIME.search(prefix):
        name, day, hour, minute, second, utc, year = found.groups()
        fields = (int(year), _month(name), int(day), int(hour), int(minute), int(second))
        return _made(found.group(0), fields, None, 0.0 if utc else clocks.utc_offset_s)
    if found := _SYSLOG.search(prefix):
        name, day, hour, minute, second, part = found.groups()
        fields = (clocks.year or 0, _month(name), int(day), int(hour), int(minute), int(second))
        return _made(found.group(0), fields, part, clocks.utc_offset_s)
    if found := _UNIX.search(prefix):
        return Stamp(found.group(1), float(found.group(1)))
    return None


def _month(name: str) -> int:
    return _MONTHS.index(name.lower()) + 1


def _offset(hours: str, minutes: str) -> float:
    sign = -1 if hours.startswith("-") else 1
    return sign * (abs(int(hours)) * 3600.0 + int(minutes) * 60.0)


def _made(text: str, fields: tuple[int, int, int, int, int, int], part: str | None, offset: float | None) -> Stamp:
    if offset is None:
        return Stamp(text)
    try:
        moment = datetime(*fields, tzinfo=timezone(timedelta(seconds=offset)))
    except ValueError:  # no such day, or no such zone
        return Stamp(text)
    return Stamp(text, moment.timestamp() + (float(f"0.{part}") if part else 0.0))
