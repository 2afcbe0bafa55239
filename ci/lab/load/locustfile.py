"""Clients of the load test: requests drawn from the pool, every row of every answer compared with what it must be.

$LOAD names a JSON file: engine, pool, requests, tolerance, and the file for what was counted.
"""

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

import gevent
import numpy as np
from locust import FastHttpUser, constant, events, task
from locust.exception import StopUser

sys.path.insert(0, str(Path(__file__).parent))
from protocols import PROTOCOLS

JOB = json.loads(Path(os.environ["LOAD"]).read_text())
POST, ROWS = PROTOCOLS[JOB["engine"]]
POOL = json.loads(Path(JOB["pool"]).read_text())
BODIES = [json.dumps(POST(request)[1]).encode() for request in POOL]
WANTED = [np.array(request["rows"], np.float32) if "rows" in request else None for request in POOL]
counts: Counter[str] = Counter()
examples: dict[str, str] = {}
worst = 0.0
draw = random.Random(1)


class Client(FastHttpUser):
    """Asks again as soon as it is answered; the pool's order is drawn, so that runs are alike."""

    wait_time = constant(0)
    network_timeout = connection_timeout = 120

    @task
    def ask(self):
        if counts["sent"] >= JOB["requests"]:
            raise StopUser
        counts["sent"] += 1
        place = draw.randrange(len(POOL))
        request, wanted = POOL[place], WANTED[place]
        with self.client.post(
            POST(request)[0] if wanted is None else POST({"texts": []})[0],
            data=BODIES[place],
            headers={"Content-Type": "application/json"},
            name="bad" if wanted is None else "good",
            catch_response=True,
        ) as response:
            verdict = judge(response, request, wanted)
            counts[verdict] += 1
            if verdict in ("right", "refused"):
                response.success()
            else:
                examples.setdefault(verdict, f"{request['kind']}: {response.status_code} {(response.text or '')[:300]}")
                response.failure(verdict)
        counts["judged"] += 1
        if counts["judged"] == JOB["requests"]:
            gevent.spawn(self.environment.runner.quit)  # which waits for this client too


def judge(response, request, wanted):
    """What became of a request: ``right`` and ``refused`` are what good and bad ones earn."""
    global worst
    if wanted is None:
        if response.status_code != 400:
            return "bad, not refused"
        return "refused" if request["error"] in response.text else "bad, refused with another sentence"
    if response.status_code != 200:
        return "good, refused"
    rows = np.array(ROWS(response.json()), np.float32)
    counts["rows"] += len(wanted)
    if rows.shape != wanted.shape:
        return "wrong"
    error = float(np.abs(rows - wanted).max())
    worst = max(worst, error)
    return "right" if error <= JOB["tolerance"] else "wrong"


@events.quitting.add_listener
def report(environment, **_):
    good = environment.stats.get("good", "POST")
    del counts["sent"]
    found = {
        "requests": counts.pop("judged"),
        "rows": counts.pop("rows"),
        "largest_difference": worst,
        "verdicts": dict(counts),
        "examples": examples,
        "seconds": environment.stats.total.last_request_timestamp - environment.stats.total.start_time,
        "milliseconds": {f"p{p}": good.get_response_time_percentile(p / 100) for p in (50, 90, 99)},
    }
    Path(JOB["result"]).write_text(json.dumps(found))
