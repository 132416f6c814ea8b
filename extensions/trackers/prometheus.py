"""The newest figures as Prometheus reads them: text over HTTP at /metrics, while the run lasts."""

import logging
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from app.trackers.base import Setting, figures
from common.errors import UserError
from common.extensions import keys_of_extension
from extensions.trackers.keys import TrackersConfig

log = logging.getLogger("clickwork")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's text exposition format


class Prometheus:
    """An HTTP server in a thread of its own; the loop only exchanges a dictionary."""

    def __init__(self, host: str, port: int, run: str) -> None:
        """Start to serve.

        Raises:
            UserError: the address cannot be listened at.
        """
        self._label = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._figures: dict[str, float] = {}
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name is http.server's
                is_metrics = self.path.partition("?")[0] == "/metrics"
                body = tracker.text().encode() if is_metrics else b"see /metrics\n"
                self.send_response(200 if is_metrics else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are not logged."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise UserError(f"trackers.prometheus_port={port}: cannot listen at {host} ({error.strerror})") from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="prometheus", daemon=True).start()

    def event(self, event: AnyEvent) -> None:
        samples = float(event.samples or 0)
        now = {"step": float(event.step), "samples": samples, "last_event_time_seconds": time.time()}
        self._figures = {**self._figures, **now, **figures(event)}

    def text(self) -> str:
        """All figures, each a gauge labelled with the run's name."""
        lines = []
        for tag, value in sorted(self._figures.items()):
            name = "clickwork_" + re.sub(r"\W", "_", tag)
            lines += [f"# TYPE {name} gauge", f'{name}{{run="{self._label}"}} {value!r}']
        return "\n".join(lines) + "\n"

    def curves(self, curves: Curves) -> None: ...

    def close(self, summary: Summary | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def start(setting: Setting) -> Prometheus:
    """Serve at the configured address. Raises UserError as `Prometheus` does."""
    keys = keys_of_extension(setting.config, TrackersConfig)
    assert keys.prometheus_port is not None
    tracker = Prometheus(keys.prometheus_host, keys.prometheus_port, setting.config.run.name)
    log.info("prometheus: http://%s:%d/metrics", keys.prometheus_host, keys.prometheus_port)
    return tracker
