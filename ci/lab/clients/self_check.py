"""A bundle's sample in a browser, by examples/self-check.mjs: self_check.py BUNDLE [wasm|webgpu]

Prints what selfCheck gives, as JSON. WebGPU runs without a GPU: Chromium brings SwiftShader.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import web

LIBRARIES = {"wasm": "ort.wasm.min.mjs", "webgpu": "ort.webgpu.min.mjs"}
#: Chromium's, for WebGPU on the processor
WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
#: seconds
LIMIT = 120
_PAGE = """
import * as ort from "/ort/LIBRARY";
import { selfCheck } from "/self-check.mjs";
ort.env.wasm.wasmPaths = "/ort/";
ort.env.wasm.numThreads = 1;
let answer;
try {
  const session = await ort.InferenceSession.create("/bundle/model.onnx", { executionProviders: ["PROVIDER"] });
  answer = await selfCheck(ort, session, await (await fetch("/bundle/parity.safetensors")).arrayBuffer());
} catch (error) {
  answer = { error: `${error.message ?? error}` };
}
await fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
"""


def in_browser(bundle: Path, provider: str = "wasm") -> list[dict[str, Any]]:
    """What the page answers; RuntimeError where there is none, or ONNX Runtime raised."""
    page = _PAGE.replace("LIBRARY", LIBRARIES[provider]).replace("PROVIDER", provider)
    files = {
        "page.html": b'<script type="module" src="/page.mjs"></script>',
        "page.mjs": page.encode(),
        "self-check.mjs": web.SELF_CHECK.read_bytes(),
    }
    libraries = web.CLIENTS / "node" / "node_modules" / "onnxruntime-web" / "dist"
    server = web.Server({"bundle": bundle, "ort": libraries}, files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [word for word in web.chromium() if provider == "wasm" or word != "--disable-gpu"]
    command += WEBGPU if provider == "webgpu" else []
    paths = [os.environ.get("LD_LIBRARY_PATH"), str(web.CLIENTS / "chromium" / "lib"), str(web.CLIENTS / "chromium")]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        address = f"http://127.0.0.1:{server.server_address[1]}/page.html"
        quiet = subprocess.DEVNULL
        browser = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", address], stdout=quiet, stderr=quiet, env=environment
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
    answer = json.loads(server.answer or b'{"error": "the page gave no answer"}')
    if isinstance(answer, dict):
        raise RuntimeError(answer["error"])
    checked: list[dict[str, Any]] = answer
    return checked


if __name__ == "__main__":
    print(json.dumps(in_browser(Path(sys.argv[1]), *sys.argv[2:]), indent=1))
