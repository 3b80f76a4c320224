"""The NVIDIA driver's errors in a kernel log, as typed events.

Law: `parse_xid` is total: any text in any form that dmesg, /dev/kmsg, journalctl or syslog print, cut anywhere, gives events and
never raises.  A number whose end is not seen is None, never a shorter number.

Forms: kernel_rc.c and nv.c in github NVIDIA/open-gpu-kernel-modules; public logs (NVIDIA/NVSentinel#155, leptonai/gpud#1209, #1174).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from elastic_health.preflight.kernel_time import Clocks, Stamp, stamp_of
from elastic_health.preflight.text_lines import lines_of

LONGEST_RECORD = 1 << 13
LONGEST_KEPT = 1000
MOST_JOINED = 4
MOST_APART = 8


class EventKind(Enum):
    """What a line says."""

    XID = "xid"
    SWITCH = "sxid"  # of an NVSwitch; its numbers are not those of GPUs
    LOST = "lost"  # the GPU is gone, said without an Xid: treated as Xid 79
    INIT_FAILED = "init_failed"  # the driver could not take the GPU into use
    CUT = "cut"  # a driver's line whose number or end is missing


@dataclass(frozen=True)
class XidEvent:
    """One error; -1, None or "" where the line doesn't say.

    Attributes:
        pci: `domain:bus:device.function`, e.g. `0000:b3:00.0`.
        xid: the number; 79 for `LOST`.
        instance: MIG attribution as printed, e.g. `GPU-I:05`.
        detail: the message after number, pid and name.
        severity: `fatal` or `nonfatal` (Xid 144-150, SXid).
        unit, link, registers, subcode: Xid 144-150; registers and link also of Xid 74.
        action: Xid 154: the recovery that the GPU asks for from here on, in the driver's words.
        uuid: of the GPU, and host, where the log tells them.
        line: from 1.
    """

    kind: EventKind
    xid: int | None = None
    pci: str = ""
    time: str = ""
    epoch: float | None = None
    uptime_s: float | None = None
    pid: int | None = None
    process: str = ""
    detail: str = ""
    instance: str = ""
    severity: str = ""
    unit: str = ""
    link: int | None = None
    registers: tuple[int, ...] = ()
    subcode: int | None = None
    action: str = ""
    uuid: str = ""
    host: str = ""
    line: int = 0
    raw: str = ""


@dataclass
class _Record:
    """One kernel message: its physical lines joined."""

    line: int
    text: str
    stamp: str = ""
    joined: int = 0
    whole: bool = True


_I = re.IGNORECASE
_PCI = r"[0-9a-f]{1,8}:[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-9a-f])?"
_XID = re.compile(
    r"(?<![a-z])(s?)xid {0,3}\( {0,2}(?:PCI ?: ?)?(" + _PCI + r")(?: {1,2}([^)]{1,60}))?\) {0,3}:? {0,3}(\d{1,4})?(?!\d)( {0,2},)? {0,2}",
    _I,
)
_PROCESS = re.compile(r"(?:pid=([^,]{0,40})(?:,|$) {0,2})?(?:name=([^,]{0,80})(?:,|$) {0,2})?", _I)
_NVLINK = re.compile(
    r"([\w/]{2,40}) {1,4}(Fatal|Non-?fatal) {1,4}XC\d{1,2} {1,2}i\d{1,2} {1,2}Link {1,2}(-?\d{1,3})\b(?: {1,2}\(([^)]{0,200}))?", _I
)
_SEVERITY = re.compile(r"\b(Fatal|Non-?fatal)\b", _I)
_LINK = re.compile(r"\blink {1,2}(-?\d{1,3}) {0,2}\(([^)]{0,200})", _I)
_WORD32 = re.compile(r"0x[0-9a-f]{1,8}\b", _I)
_RECOVERY = re.compile(r"recovery action changed.{0,60}? to 0x([0-9a-f]{1,2})\b(?: {1,2}\(([^)]{1,60})\))?", _I)
_ACTIONS = ("None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset")
_NVRM = re.compile(r"\bNVRM\b", _I)
_FULL_PCI = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?(?![0-9a-f]|:[0-9a-f])"
    r"|(?<![0-9a-f:])[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f]|:[0-9a-f])",
    _I,
)
_UUID = re.compile(r"GPU at (?:PCI:)?(" + _PCI + r"): (GPU-[0-9a-f-]{8,40})", _I)
_SUBJECT = re.compile(r"The NVIDIA GPU (" + _PCI + ")", _I)
_LOST = re.compile(r"fallen off the bus|GPU is lost\b|GPU lost from the bus|NV_ERR_GPU_IS_LOST", _I)
_INIT = re.compile(
    r"rm_?init_?adapter(?:\(\d{1,3}\))? failed|NVIDIA probe routine failed|Cannot attach gpu|installed in this system is not\b", _I
)
_DRIVER = re.compile(r"\bNVRM\b|\bnvidia\b", _I)
# How the messages that matter begin, after "NVRM: ": a last line that is cut within one may have been one.
_BEGINNINGS = ("xid (", "sxid (", "gpu ", "the nvidia gpu ", "(pci id", "rminitadapter", "rm_init_adapter", "fallen off")
_BOOT = re.compile(r"Linux version \d|^-- (?:Reboot|Boot [0-9a-f]{32}) --", _I)
_BEGINS = re.compile(
    r"\s{0,3}(?:<\d|\[ {0,8}[\d+A-Z]|\d{4}-\d\d-\d\d|\d{1,4},\d{1,20},\d{1,20},|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:"
    r"|[a-z]{4,8} {0,4}:[a-z]{3,6} {0,4}:|\d{9,11}\.\d|\{)",
    _I,
)
_HOST = re.compile(r"(?:^|(?<=\s))(?!UTC |GMT )([\w.-]{1,255}) kernel: ")
_UNREADABLE = re.compile(r"NVRM: {0,4}Xid\b", _I)
_PROPERTY = re.compile(r" [A-Z][A-Z0-9_]{1,30}=\S{1,200}$")
"""What /dev/kmsg prints after a record: the device that it is about."""
_ESCAPED_END = re.compile(r"\\x0a|\\n", _I)


def parse_xid(text: str, clocks: Clocks = Clocks()) -> tuple[XidEvent, ...]:
    """All errors of the driver, in the order of the text.

    Args:
        clocks: what the caller knows of the machine, so that more times become instants.
    """
    reading = _Reading(clocks)
    for number, record in enumerate(_records(text)):
        reading.take(record, number)
    reading.give_up()
    return tuple(replace(event, uuid=reading.uuids.get((event.host, event.pci), "")) for event in reading.found)


class _Reading:
    """The log while it is read.

    A message may name its device in one line and say what happened to it in a later one; one that never says it was cut.
    """

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.found: list[XidEvent] = []
        self.uuids: dict[tuple[str, str], str] = {}
        self.subject: XidEvent | None = None  # the device that was named last
        self.pending: XidEvent | None = None  # a device of which nothing was said yet
        self.seen_at = 0

    def take(self, record: _Record, number: int) -> None:
        host = _host_of(record)
        if number - self.seen_at > MOST_APART:
            self.give_up()
            self.subject = None
        if (told := _SUBJECT.search(record.text)) is not None:
            self.give_up()
            self.pending = self.subject = replace(_base(record, self.clocks), pci=pci_of(told.group(1)), host=host)
            self.seen_at = number
        self.uuids.update({(host, pci_of(m.group(1))): m.group(2) for m in _UUID.finditer(record.text)})
        for event in _events(record, self.clocks):
            self._add(replace(event, host=host), number)

    def _add(self, event: XidEvent, number: int) -> None:
        if event.kind in (EventKind.LOST, EventKind.INIT_FAILED):
            self.pending = None
            event = _about(event, self.subject)
        if event.pci:
            self.subject, self.seen_at = event, number
        self.found.append(event)

    def give_up(self) -> None:
        if self.pending is not None:
            self.found.append(self.pending)
        self.pending = None


def _host_of(record: _Record) -> str:
    found = _HOST.search(record.stamp[:400])
    return found.group(1) if found else ""


def last_boot(text: str) -> str:
    """The text from the newest start of a kernel on; all of it where none is seen."""
    lines = lines_of(text)
    starts = [i for i, line in enumerate(lines.texts) if _BOOT.search(line[:200])]
    return "\n".join(lines.texts[starts[-1] :]) + ("\n" if lines.whole else "") if starts else text


def _about(event: XidEvent, subject: XidEvent | None) -> XidEvent:
    """A line that names no device, about the device that the lines before it name on the same host."""
    if event.pci or subject is None or event.host not in ("", subject.host):
        return event
    named = replace(event, pci=subject.pci, host=subject.host)
    return named if event.time else replace(named, time=subject.time, epoch=subject.epoch, uptime_s=subject.uptime_s)


def pci_of(text: str) -> str:
    """`domain:bus:device.function` in lower case; a domain of 8 digits loses its leading zeros down to 4; without one it is 0."""
    place, _, function = text.lower().partition(".")
    domain, bus, device = ["0", *place.split(":")][-3:]
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def _records(text: str) -> Iterator[_Record]:
    """Kernel messages; a driver's message that goes on in lines without a time of their own is joined."""
    lines = lines_of(text)
    current: _Record | None = None
    for number, line in enumerate(lines.texts, start=1):
        if not line or line.isspace() or _PROPERTY.match(line):
            continue
        if len(line) > LONGEST_RECORD:
            line = f"{line[: LONGEST_RECORD // 2]} {line[-LONGEST_RECORD // 2 :]}"
        if current is not None and _goes_on(current, line):
            current.text, current.joined = f"{current.text} {line.strip()}", current.joined + 1
            continue
        if current is not None:
            yield current
        current = _record(line, number)
    if current is not None:
        current.whole = lines.whole
        yield current


def _record(line: str, number: int) -> _Record:
    if line.startswith("{") and '"MESSAGE"' in line:
        return _journal(line, number) or _Record(number, line)
    text = _ESCAPED_END.sub(" ", line)
    driver = _NVRM.search(text)
    return _Record(number, text, text[: driver.start()] if driver else "")


def _journal(line: str, number: int) -> _Record | None:
    """A line of `journalctl -o json`."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    message, at = entry.get("MESSAGE"), str(entry.get("__REALTIME_TIMESTAMP", ""))
    if isinstance(message, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
        message = bytes(message).decode("utf-8", "replace")  # how the journal tells a text that is no UTF-8
    if not isinstance(message, str):
        return None
    host = str(entry.get("_HOSTNAME", ""))
    stamp = f"{int(at) / 1e6:.6f} " if re.fullmatch(r"[0-9]{15,17}", at) else ""
    stamp += f"{host} kernel: " if _HOST.fullmatch(f"{host} kernel: ") else ""
    return _Record(number, f"{stamp}{message[:LONGEST_RECORD]}".replace("\n", " "), stamp)


def _goes_on(current: _Record, line: str) -> bool:
    if current.joined >= MOST_JOINED or _NVRM.search(line) or not _NVRM.search(current.text):
        return False
    return line[0].isspace() or (_BEGINS.match(current.text) is not None and _BEGINS.match(line) is None)


def _events(record: _Record, clocks: Clocks) -> Iterator[XidEvent]:
    matches = list(_XID.finditer(record.text))
    stamp = stamp_of(record.stamp or record.text[:120], clocks) if matches else Stamp()
    for i, match in enumerate(matches):
        end = matches[i + 1].start() if i + 1 < len(matches) else len(record.text)
        yield _xid(record, match, record.text[match.end() : end], stamp)
    if not matches and (kind := _kind(record)) is not None:
        yield replace(_base(record, clocks), kind=kind, xid=79 if kind is EventKind.LOST else None)


def _kind(record: _Record) -> EventKind | None:
    """What a message without a readable Xid is; None for the many that are none of ours."""
    driver = _DRIVER.search(record.text) is not None
    if driver and _LOST.search(record.text):
        return EventKind.LOST
    if driver and _INIT.search(record.text):
        return EventKind.INIT_FAILED
    cut = _UNREADABLE.search(record.text) is not None or (not record.whole and _may_be_cut(record.text))
    return EventKind.CUT if cut else None


def _base(record: _Record, clocks: Clocks) -> XidEvent:
    stamp, raw = stamp_of(record.stamp or record.text[:120], clocks), record.text.strip()[:LONGEST_KEPT]
    pci = _pci_in(record.text)
    return XidEvent(EventKind.CUT, None, pci, stamp.text, stamp.epoch, stamp.uptime_s, detail=raw, line=record.line, raw=raw)


def _may_be_cut(text: str) -> bool:
    found = _NVRM.search(text)
    said = text[found.end() :].lower().lstrip(": ") if found else None
    return said is not None and any(said.startswith(beginning) or beginning.startswith(said) for beginning in _BEGINNINGS)


def _pci_in(text: str) -> str:
    driver = _DRIVER.search(text)
    found = _FULL_PCI.search(text, driver.start() if driver else 0)
    return pci_of(found.group(0)) if found else ""


def _xid(record: _Record, match: re.Match[str], rest: str, stamp: Stamp) -> XidEvent:
    switch, place, instance, number, comma = match.groups()
    sure = number is not None and (comma or (not record.joined and (record.whole or rest.strip() != "")))
    kind = EventKind.CUT if not sure else EventKind.SWITCH if switch else EventKind.XID
    process = _PROCESS.match(rest)
    detail = (rest[process.end() :] if process else rest).strip()
    if detail.upper().endswith("NVRM:"):  # of the next message, on the same line
        detail = detail[:-5].rstrip()
    event = XidEvent(
        kind,
        int(number) if sure else None,
        pci_of(place),
        stamp.text,
        stamp.epoch,
        stamp.uptime_s,
        _pid(process),
        _name(process),
        detail[:LONGEST_KEPT],
        (instance or "").strip(),
        line=record.line,
        raw=record.text.strip()[:LONGEST_KEPT],
    )
    return _with_codes(event)


def _pid(process: re.Match[str] | None) -> int | None:
    text = (process.group(1) or "").strip(" '\"") if process else ""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else None


def _name(process: re.Match[str] | None) -> str:
    text = (process.group(2) or "").strip(" '\"") if process else ""
    return "" if text.lower() == "<unknown>" else text


def _with_codes(event: XidEvent) -> XidEvent:
    if event.kind is EventKind.SWITCH:
        return replace(event, severity=_severity(_SEVERITY.search(event.detail)))
    if event.xid == 154 and (told := _RECOVERY.search(event.detail)):
        code = int(told.group(1), 16)
        return replace(event, action=told.group(2) or (_ACTIONS[code] if code < len(_ACTIONS) else f"0x{code:x}"))
    if event.xid is not None and 144 <= event.xid <= 150:
        return _with_link(event)
    if event.xid == 74 and (told := _LINK.search(event.detail)):
        return replace(event, link=int(told.group(1)), registers=_registers(told.group(2)))
    return event


def _with_link(event: XidEvent) -> XidEvent:
    told = _NVLINK.search(event.detail)
    if told is None:
        return replace(event, severity=_severity(_SEVERITY.search(event.detail)))
    unit, severity, link, words = told.groups()
    registers = _registers(words or "")
    subcode = (registers[0] >> 20) & 0x3F if registers else None
    fatal = "nonfatal" if severity.lower().startswith("non") else "fatal"
    return replace(event, unit=unit, severity=fatal, link=int(link), registers=registers, subcode=subcode)


def _severity(found: re.Match[str] | None) -> str:
    return "" if found is None else "nonfatal" if found.group(1).lower().startswith("non") else "fatal"


def _registers(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in _WORD32.findall(text))


def looks_like_kernel_log(text: str) -> bool:
    """Whether any line has a form in which kernel messages are printed."""
    return any(_KERNEL.search(line[:200]) for line in lines_of(text).texts if line)


_KERNEL = re.compile(
    r"^\s{0,3}(?:<\d{1,3}>)?\[ {0,8}\+?\d{1,10}\.\d{6}\]|^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} {1,2}\d|\bkernel: |\bNVRM: "
    r"|^\d{1,4},\d{1,20},\d{1,20},[^;\s]{0,80};|^kern {0,3}:[a-z]{3,6} {0,3}:|_TRANSPORT\" ?: ?\"kernel\"",
    _I,
)
