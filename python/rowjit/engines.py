"""An engine for every device, made when it is first needed, and the executables it has compiled."""

import json
import logging
import threading

from rowjit._core import Engine, Executable, Graph, set_log as _set_log

_engines: dict[str, Engine] = {}
_executables: dict[tuple[str, str, bool], Executable] = {}
_lock = threading.Lock()


def engine(device: str = "cpu") -> Engine:
    """The engine of "cpu", "cuda:0", "hip:1"; the same for every caller."""
    with _lock:
        made = _engines.get(device)
        if made is None:
            made = _engines[device] = Engine(device)
        return made


def executable(device: str, graph: Graph, stream: int = 0, low_memory: bool = False) -> Executable:
    """The graph compiled for the device, once for all that have the same text."""
    key = (device, graph.text(), low_memory)
    known = _executables.get(key)
    if known is None:
        known = engine(device).compile(graph, stream, low_memory)
        with _lock:
            known = _executables.setdefault(key, known)
    return known


def statistics(device: str = "cpu") -> dict[str, object]:
    """What the device's engine has done: "compiled", "memory_hits", "disk_hits", "compile_ms", and its "target"."""
    return json.loads(engine(device).info())


def tune(device: str, rows: int, max_candidates: int = 0) -> int:
    """Measures schedules of every kernel that this process has compiled for the device, on `rows` rows, and keeps the best.

    The device must be otherwise idle. Executables made before keep their schedules; the next process uses the tuned
    ones. Returns how many graphs were tuned.
    """
    with _lock:
        texts = [text for (on, text, _) in _executables if on == device]
    for text in texts:
        graph = Graph.parse(text)
        engine(device).tune(graph, {axis: rows for axis in graph.row_axes}, max_candidates)
    return len(texts)


_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def set_log(enabled: bool = True) -> None:
    """Sends rowjit's messages, as far as ROWJIT_LOG lets them pass, to the logger "rowjit", or drops them."""
    logger = logging.getLogger("rowjit")
    _set_log((lambda level, message: logger.log(_LEVELS[level], "%s", message)) if enabled else None)
