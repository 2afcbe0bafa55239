"""Serves a page with onnxruntime-web to a headless Chromium and waits for what it answers: web.py JOB ANSWER"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path, PurePosixPath

HERE = Path(__file__).parent
CLIENTS = HERE.parents[2] / ".cache" / "clients"
SELF_CHECK = HERE.parents[2] / "examples" / "self-check.mjs"
#: seconds; WebAssembly with one thread is slow, and the machine may be
LIMIT = 540
TYPES = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


def chromium() -> list[str]:
    """The browser's command line: $CHROMIUM, else the one that ci/lab/clients/setup unpacked."""
    program = os.environ.get("CHROMIUM") or str(CLIENTS / "chromium" / "chromium")
    # its sandbox refuses to run as root
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [program, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", *sandbox]


class Server(http.server.ThreadingHTTPServer):
    """Folders by the first part of the path; ``answered`` is set when the page has posted its ``answer``."""

    def __init__(self, folders: dict[str, Path], files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders, self.files = folders, files
        self.answered = threading.Event()
        self.answer: bytes = b""


class Handler(http.server.BaseHTTPRequestHandler):
    """GET of files, POST of the answer."""

    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/").partition("?")[0]
        data = self.server.files.get(name)
        if data is None:
            first, _, rest = name.partition("/")
            path = self.server.folders.get(first, HERE) / (rest or first)
            if ".." in PurePosixPath(name).parts or not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", TYPES.get(PurePosixPath(name).suffix, "application/octet-stream"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.server.answer = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.answered.set()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the base class's name
        """Nothing."""


def run(job: dict[str, object]) -> dict[str, object]:
    """What the page answers to a job."""
    names = ("encoder", "encoder_js", "external", "decoder", "encodings_folder", "self_check")
    folders = {name: Path(str(job[name])) for name in names if name in job}
    folders["encodings"] = folders.pop("encodings_folder", HERE)
    folders["ort"] = CLIENTS / "node" / "node_modules" / "onnxruntime-web" / "dist"
    server = Server(folders, {"job.json": json.dumps(job).encode(), "self-check.mjs": SELF_CHECK.read_bytes()})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(CLIENTS / "chromium" / "lib")]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tempfile.TemporaryFile() as log:
        browser = subprocess.Popen(
            [*chromium(), f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_address[1]}/web.html"],
            stdout=log,
            stderr=log,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        try:
            for _ in range(LIMIT):
                if server.answered.wait(1) or browser.poll() is not None:
                    break
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
            server.server_close()
        if not server.answered.is_set():
            log.seek(0)
            said = log.read().decode(errors="replace").strip()[-2000:]
            raise SystemExit(f"the page gave no answer within {LIMIT} s; the browser said: {said}")
    answer: dict[str, object] = json.loads(server.answer)
    if "error" in answer:
        raise SystemExit(f"onnxruntime-web failed: {answer['error']}")
    return answer


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
