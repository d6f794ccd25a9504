#!/usr/bin/env python3
"""Keeps a server busy with many clients that mix everything, and checks what comes back.

Usage: soak.py URL [--seconds 1800] [--clients 32] [--key KEY] [--pid SERVER_PID] [--json]

Every client repeats: a chat (whole or streamed), a tool call, a schema, a long prompt, a text completion, an aborted
stream, a bad request. Answers at temperature 0 must always be the same. At the end: requests, wrong and lost ones,
p50 and p99 of the time to the first token and of the gap between tokens, and the server's memory after the warm-up
and at the end. Exits with 1 when something was wrong or lost, or memory grew by more than 10 %.
"""
import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0,
          "maximum": 99}}, "required": ["yes", "n"], "additionalProperties": False}
QUESTIONS = ["Define hope.", "What does door mean?", "Quote Genesis 1:1.", "Define sea.", "Define justice."]


class Soak:
    def __init__(self, args):
        self.args = args
        self.url = urllib.parse.urlparse(args.url)
        self.end = time.monotonic() + args.seconds
        self.lock = threading.Lock()
        self.expected = {}
        self.first, self.gaps = [], []
        self.counts = {"requests": 0, "wrong": 0, "lost": 0, "busy": 0, "aborted": 0, "tokens": 0}
        self.notes = []

    def count(self, name, note=None, n=1):
        with self.lock:
            self.counts[name] += n
            if note and len(self.notes) < 20:
                self.notes.append(f"{name}: {note}")

    def connect(self):
        return http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)

    def send(self, connection, path, body):
        headers = {"Content-Type": "application/json"}
        if self.args.key:
            headers["Authorization"] = "Bearer " + self.args.key
        connection.request("POST", path, json.dumps(body), headers)
        return connection.getresponse()

    def same(self, key, value):
        with self.lock:
            known = self.expected.setdefault(key, value)
        if known != value:
            self.count("wrong", f"{key}: {known!r} became {value!r}")

    def whole(self, path, body, key, pick):
        connection = self.connect()
        reply = self.send(connection, path, body)
        data = reply.read()
        connection.close()
        if reply.status == 429:
            self.count("busy")
            return
        if reply.status != 200:
            self.count("lost", f"{key}: status {reply.status}: {data[:200]!r}")
            return
        value = json.loads(data)
        self.count("tokens", n=value.get("usage", {}).get("completion_tokens", 0))
        self.same(key, pick(value))

    def stream(self, body, key, abort_after=None):
        connection = self.connect()
        start = time.monotonic()
        reply = self.send(connection, "/v1/chat/completions", dict(body, stream=True))
        if reply.status != 200:
            self.count("busy" if reply.status == 429 else "lost", f"{key}: status {reply.status}")
            return
        text, last, done, n = "", None, False, 0
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                self.count("lost", f"{key}: {event}")
                return
            piece = "".join(c["delta"].get("content") or "" for c in event["choices"])
            if not piece:
                continue
            now = time.monotonic()
            with self.lock:
                (self.first if last is None else self.gaps).append(now - (start if last is None else last))
            last = now
            text += piece
            n += 1
            if abort_after and n >= abort_after:
                connection.close()
                reply.close()
                self.count("aborted")
                return
        connection.close()
        self.count("tokens", n=n)
        if not done:
            self.count("lost", f"{key}: the stream ended early")
        else:
            self.same(key, text)

    def step(self, rng):
        question = rng.choice(QUESTIONS)
        chat = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 48}
        content = lambda v: v["choices"][0]["message"]["content"]
        kind = rng.randrange(8)
        if kind == 0:
            self.whole("/v1/chat/completions", chat, "chat " + question, content)
        elif kind in (1, 2):
            self.stream(chat, "chat " + question)
        elif kind == 3:
            tools = dict(chat, tools=[TOOL], messages=[{"role": "user", "content": "What is the weather in Oslo?"}])
            self.whole("/v1/chat/completions", tools, "tools", lambda v: [
                c["function"] for c in v["choices"][0]["message"].get("tool_calls", [])])
        elif kind == 4:
            schema = dict(chat, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})
            self.whole("/v1/chat/completions", schema, "schema " + question, content)
        elif kind == 5:
            long_text = "In the beginning God created the heaven and the earth. " * rng.choice([20, 60, 120]) + question
            self.stream(dict(chat, messages=[{"role": "user", "content": long_text}], max_tokens=16),
                        f"long {len(long_text)} {question}")
        elif kind == 6:
            self.stream(dict(chat, max_tokens=400, ignore_eos=True), "abort", abort_after=rng.randrange(1, 20))
        else:
            seeded = dict(chat, temperature=1, seed=rng.randrange(3), max_tokens=16)
            self.whole("/v1/chat/completions", seeded, f"seed {seeded['seed']} {question}", content)
        self.count("requests")

    def client(self, number):
        rng = random.Random(number)
        while time.monotonic() < self.end:
            try:
                self.step(rng)
            except Exception as error:  # noqa: BLE001 - whatever it is, a request was lost
                self.count("lost", repr(error))

    def resident_mib(self):
        if not self.args.pid:
            return None
        with open(f"/proc/{self.args.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return None

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(self.args.clients)]
        for thread in threads:
            thread.start()
        time.sleep(self.args.seconds * 0.4)
        warm = self.resident_mib()
        for thread in threads:
            thread.join(self.args.seconds + 300)
        lost_threads = sum(t.is_alive() for t in threads)
        if lost_threads:
            self.count("lost", f"{lost_threads} clients hang", n=lost_threads)
        return warm, self.resident_mib()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3 if values else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--key")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--json", action="store_true")
    soak = Soak(parser.parse_args())
    warm, end = soak.run()
    result = dict(soak.counts, first_token_ms={"p50": percentile(soak.first, 0.5), "p99": percentile(soak.first, 0.99)},
                  token_gap_ms={"p50": percentile(soak.gaps, 0.5), "p99": percentile(soak.gaps, 0.99)},
                  resident_mib={"warm": warm, "end": end}, tokens_per_second=soak.counts["tokens"] / soak.args.seconds)
    print(json.dumps(result) if soak.args.json else "\n".join(f"{k}: {v}" for k, v in result.items()))
    for note in soak.notes:
        print(note, file=sys.stderr)
    grew = warm is not None and end > warm * 1.1
    return 1 if soak.counts["wrong"] or soak.counts["lost"] or grew else 0


if __name__ == "__main__":
    sys.exit(main())
